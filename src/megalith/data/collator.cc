// The built-in collator. Rows become strips (the sequences of the layout), strips get lengths, and tokens are copied:
//
//   row     a b c d | e f          two pieces, labels beside their tokens
//   strips  a b c     e            one per piece; the last token of each is only a label
//   ids     a b c . e .            padded to a multiple of 2·cp each
//   labels  b c d - f -            shifted; '-' is kIgnoredLabel
//   fill    . .                    a last sequence of padding, up to a multiple of cp·tp
//
// Ranks collate on their own, so everything here must be a function of samples and options only.
#include "megalith/data/collator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/repeat.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/data/collate_coordinates_internal.h"
#include "megalith/data/collate_fields_internal.h"
#include "megalith/data/collate_media_internal.h"
#include "megalith/data/own_batch_internal.h"
#include "megalith/data/strip_internal.h"

namespace megalith::data {
namespace {

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Appends the sequences that a row becomes. Tokens after the last piece are padding and left out.
void add_strips(const Sequence& row, std::vector<Strip>& strips) {
  const auto tokens =
      row.pieces.empty() ? std::ssize(row.ids) : std::accumulate(row.pieces.begin(), row.pieces.end(), int64_t{0});
  check(tokens <= std::ssize(row.ids) && row.labels.size() == row.ids.size(), "a row of {} tokens with {} labels",
        row.ids.size(), row.labels.size());
  const int64_t dropped = row.shifted ? 0 : 1;  // the last token, if it is only a label
  if (row.pieces.size() <= 1 || row.pieces_attend) {
    strips.push_back({&row, 0, std::max<int64_t>(tokens - dropped, 0)});
    return;
  }
  int64_t begin = 0;
  for (const int64_t piece : row.pieces) {
    if (piece > dropped) strips.push_back({&row, begin, piece - dropped});  // a single token predicts nothing
    begin += piece;
  }
}

// Whether the row is packed such that its samples must not see one another.
bool separate_pieces(const Sequence& row) { return row.pieces.size() > 1 && !row.pieces_attend; }

// Writes positions that restart at every piece of a strip whose pieces attend to one another: for attention they are a
// single sequence, but each has its own positions.
void write_positions(const Strip& strip, int64_t* out) {
  int64_t at = 0;
  for (const int64_t piece : strip.row->pieces)
    for (int64_t i = 0; i < piece && at < strip.tokens; ++i) out[at++] = i;
  std::fill(out + at, out + strip.length, 0);
}

// The labels of the strip's tokens, already shifted by label_begin(). Empty for a strip without tokens, where the
// beginning may lie after the end of the row.
std::span<const int32_t> labels_of(const Strip& strip) {
  if (strip.tokens == 0) return {};
  return std::span(strip.row->labels)
      .subspan(static_cast<size_t>(strip.label_begin()), static_cast<size_t>(strip.tokens));
}

int64_t loss_tokens(const Strip& strip) { return strip.tokens - std::ranges::count(labels_of(strip), kIgnoredLabel); }

// Writes the tokens over `ids` and `labels`, which are filled with padding before.
void write_tokens(std::span<const Strip> strips, int64_t* ids, int64_t* labels) {
  for (const Strip& strip : strips) {
    std::copy_n(strip.row->ids.begin() + strip.begin, strip.tokens, ids);
    std::ranges::copy(labels_of(strip), labels);
    ids += strip.length;
    labels += strip.length;
  }
}

// Replaces the positions of the layout where a strip needs restarts. Most batches need none and share the default ones.
ops::SequenceLayout with_restarts(ops::SequenceLayout layout, const std::vector<Strip>& strips) {
  const auto restarts = [](const Strip& strip) { return strip.row->pieces_attend && strip.row->pieces.size() > 1; };
  if (std::ranges::none_of(strips, restarts)) return layout;
  at::Tensor positions = layout.positions(at::kCPU).clone();
  int64_t at = 0;
  for (const Strip& strip : strips) {
    if (restarts(strip)) write_positions(strip, positions.mutable_data_ptr<int64_t>() + at);
    at += strip.length;
  }
  return layout.with_positions(std::move(positions));
}

// Returns the rows in the order of the micro-batch: all chosen rows, then all rejected ones.
std::vector<const Sequence*> rows_of(std::span<const Sample> samples, bool preference) {
  std::vector<const Sequence*> rows;
  for (const Sample& sample : samples) {
    check(sample.rejected.has_value() == preference, "preference pairs and single rows in one micro-batch");
    check(sample.feedback.has_value() == samples.front().feedback.has_value(),
          "answers with and without verdicts in one micro-batch");
    rows.push_back(&sample.row);
  }
  if (preference)
    for (const Sample& sample : samples) rows.push_back(&*sample.rejected);
  return rows;
}

// Returns the verdicts on the answers, bool [samples].
at::Tensor verdicts_of(std::span<const Sample> samples) {
  at::Tensor desirable = at::empty({std::ssize(samples)}, at::kBool);
  bool* out = desirable.mutable_data_ptr<bool>();
  for (const Sample& sample : samples) *out++ = sample.feedback->desirable;
  return desirable;
}

// In the order of the rows; a row of separate pieces gives several strips, or none if all pieces are single tokens.
std::vector<Strip> strips_of(std::span<const Sequence* const> rows) {
  std::vector<Strip> strips;
  for (const Sequence* row : rows) add_strips(*row, strips);
  return strips;
}

// Returns fp32 [2·samples]: the scores of the first rows (chosen answers), then of the second ones. Undefined if there
// are none.
at::Tensor reference_of(std::span<const Sample> samples) {
  const auto has = [](const Sample& sample) { return sample.reference.has_value(); };
  if (std::ranges::none_of(samples, has)) return {};
  check(std::ranges::all_of(samples, has), "pairs with and without reference scores in one micro-batch");
  const auto pairs = std::ssize(samples);
  at::Tensor scores = at::empty({2 * pairs}, at::kFloat);
  float* out = scores.mutable_data_ptr<float>();
  for (int64_t i = 0; i < pairs; ++i) {
    const ReferenceScores& of_pair = *samples[static_cast<size_t>(i)].reference;
    out[i] = of_pair.chosen;
    out[pairs + i] = of_pair.rejected;
  }
  return scores;
}

// Sets the lengths of the strips and returns the number of tokens of the micro-batch. With a fixed length, packed rows
// are also filled up to rows * fixed_length, so that every micro-batch has the same size.
int64_t pad_strips(std::span<Strip> strips, bool packed, int64_t rows, const CollatorOptions& options) {
  const bool fixed = options.padding == Padding::kFixed;
  const int64_t unit = options.sequence_multiple();
  const int64_t total_unit = std::lcm(options.total_multiple(), options.length_multiple);
  int64_t longest = 1, total = 0;
  for (const Strip& strip : strips) longest = std::max(longest, strip.tokens);
  check<ConfigError>(packed || !fixed || longest <= options.fixed_length,
                     "a row of {} tokens does not fit into the fixed length {}; raise cutoff_len or cut the data",
                     longest, options.fixed_length);
  for (Strip& strip : strips) {
    strip.length = packed ? round_up(std::max<int64_t>(strip.tokens, 1), unit)
                          : round_up(fixed ? options.fixed_length : longest, total_unit);
    total += strip.length;
  }
  return round_up(std::max<int64_t>({total, 1, fixed ? rows * options.fixed_length : 0}), total_unit);
}

}  // namespace

Collator::Collator(const CollatorOptions& options, CollateFunction own) : options_(options), own_(std::move(own)) {
  check<ConfigError>(options.length_multiple >= 1 && options.cp >= 1 && options.tp >= 1,
                     "a collator's length_multiple is {}, cp {}, tp {}; all must be at least 1",
                     options.length_multiple, options.cp, options.tp);
  check<ConfigError>(options.padding != Padding::kFixed || options.fixed_length >= 1,
                     "padding to a fixed length needs a length of at least 1, not {}", options.fixed_length);
}

int64_t Collator::padded_length(int64_t tokens) const {
  return round_up(std::max<int64_t>(tokens, 1), options_.total_multiple());
}

MicroBatch Collator::collate(std::span<const Sample> samples, CollateParts parts) const {
  if (!own_) return collate_built_in(samples, parts);
  // Complete on every stage, so that all ranks of a replica refuse the same batches.
  MicroBatch batch = completed_batch(own_(samples, Collator(options_)), samples, options_);
  if (parts == CollateParts::kLayoutOnly) batch.ids = batch.labels = batch.pixels = batch.audio_features = at::Tensor();
  return batch;
}

// Lengths first, since they decide the size of every tensor; then layout, extras and tokens from the same strips.
MicroBatch Collator::collate_built_in(std::span<const Sample> samples, CollateParts parts) const {
  MicroBatch batch;
  batch.samples = std::ssize(samples);
  batch.preference = !samples.empty() && samples.front().rejected.has_value();
  const std::vector<const Sequence*> rows = rows_of(samples, batch.preference);
  std::vector<Strip> strips = strips_of(rows);
  const bool packed = options_.padding == Padding::kNone ||
                      std::ranges::any_of(samples, [](const Sample& sample) { return separate_pieces(sample.row); });
  const int64_t total = pad_strips(strips, packed, std::ssize(rows), options_);
  std::vector<int64_t> lengths;
  int64_t filled = 0;
  for (const Strip& strip : strips) {
    lengths.push_back(strip.length);
    filled += strip.length;
    batch.real_tokens += strip.tokens;
    batch.loss_tokens += loss_tokens(strip);
  }
  batch.sequences = std::ssize(strips);
  batch.reference = reference_of(samples);
  if (!samples.empty() && samples.front().feedback) {
    batch.desirable = verdicts_of(samples);
    std::vector<Sample> others;
    for (const Sample& sample : samples) others.push_back({sample.feedback->mismatched, std::nullopt});
    batch.mismatched = std::make_shared<const MicroBatch>(collate_built_in(others, parts));
  }
  batch.extras = collate_fields(rows, strips, total);
  collate_media(rows, strips, total, parts == CollateParts::kAll,
                {options_.images.get(), options_.videos.get(), options_.sounds.get()}, options_.media_threads, batch);
  // The fill is a sequence of its own: appended to the last strip it would change that one's length for cp.
  if (total > filled) lengths.push_back(total - filled);
  const ops::SequenceLayout layout =
      with_coordinates(with_restarts(ops::SequenceLayout::packed(lengths), strips), strips, options_.positions);
  // Neither learned positions nor rotary frequencies that depend on the length may depend on padding.
  int64_t longest = 1;
  for (const Strip& strip : strips) longest = std::max(longest, strip.tokens);
  batch.layout = layout.with_max_position(std::min(layout.max_position(), longest));
  if (parts == CollateParts::kAll) {
    batch.ids = at::full({total}, options_.pad_id, at::kLong);
    batch.labels = at::full({total}, kIgnoredLabel, at::kLong);
    write_tokens(strips, batch.ids.mutable_data_ptr<int64_t>(), batch.labels.mutable_data_ptr<int64_t>());
  }
  return batch;
}

}  // namespace megalith::data
