// Scoring flattens the rows of a micro-batch into one packed sequence layout, runs it through the chunks of the model
// (the last one twice if logits are wanted beside losses), and scatters the results back into [b, s]. Padding is added
// where tensor or context parallelism needs multiples; its entries are dropped again on the way back.
#include "megalith/inference/score.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/task_progress.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/inference/stage_passes.h"
#include "megalith/io/staged_folder.h"
#include "megalith/model/families/value_head.h"
#include "megalith/nn/context_parallel/slice.h"
#include "megalith/nn/tensor_parallel/mappings.h"

namespace megalith::inference {

namespace {

namespace fs = std::filesystem;

// The sequences to score, with labels, and with their media in place.
struct Rows {
  at::Tensor input_ids, attention_mask, labels;
  MediaBatch media;
  at::Tensor last{};  // int64 [b]: the column that gives the row its score; undefined if the model predicts tokens
};

// Rows in the form that a forward pass takes, and the map back. Sequences and their total are padded so that they can
// be split.
struct FlatRows {
  ops::SequenceLayout layout;
  at::Tensor ids, labels;  // int64 [t]; 0 and -100 for padding
  // int64 [t]; -1 for padding and text. Undefined without such media.
  at::Tensor visual_rows, audio_rows;
  // int64: the tokens that are not padding, and their cells in [b, s].
  at::Tensor tokens, cells;
};

// A mask such as 1 1 1 0 0 never rises from one column to the next.
bool padded_on_the_right(const at::Tensor& mask) {
  return !mask.defined() ||
         mask.narrow(1, 1, mask.size(1) - 1).le(mask.narrow(1, 0, mask.size(1) - 1)).all().item<bool>();
}

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Returns the cells of each sequence: whole rows if padding is only on the right, else those that the mask keeps.
std::vector<at::Tensor> sequences_of(const Rows& rows) {
  const int64_t b = rows.input_ids.size(0), s = rows.input_ids.size(1);
  const bool whole = padded_on_the_right(rows.attention_mask);
  std::vector<at::Tensor> sequences;
  for (int64_t row = 0; row < b; ++row) {
    at::Tensor columns = whole ? at::arange(s, at::kLong) : rows.attention_mask[row].ne(0).nonzero().reshape({-1});
    if (columns.size(0) > 0) sequences.push_back(columns + row * s);
  }
  return sequences;
}

// Flattens rows; columns become positions. The length of each sequence is padded to a multiple of `length`, that of all
// together to a multiple of `total`.
FlatRows flatten(const Rows& rows, int64_t length, int64_t total) {
  const int64_t s = rows.input_ids.size(1);
  std::vector<int64_t> lengths;
  std::vector<at::Tensor> tokens, cells;
  int64_t filled = 0;
  for (const at::Tensor& sequence : sequences_of(rows)) {
    tokens.push_back(at::arange(filled, filled + sequence.size(0), at::kLong));
    cells.push_back(sequence);
    lengths.push_back(round_up(sequence.size(0), length));
    filled += lengths.back();
  }
  const int64_t all = round_up(std::max<int64_t>(filled, 1), std::lcm(length, total));
  if (all > filled) lengths.push_back(all - filled);
  // All rows may be empty; then the padding alone is one sequence, so that every rank still runs the model.
  const at::Tensor none = at::empty({0}, at::kLong);
  FlatRows flat;
  flat.tokens = tokens.empty() ? none : at::cat(tokens);
  flat.cells = cells.empty() ? none : at::cat(cells);
  // [number of real tokens] -> [t], with `padding` in the cells between.
  const auto spread = [&](const at::Tensor& values, int64_t padding) {
    return at::full({all}, padding, at::kLong).index_copy_(0, flat.tokens, values);
  };
  flat.ids = spread(rows.input_ids.reshape({-1}).index_select(0, flat.cells), 0);
  flat.labels = spread(rows.labels.reshape({-1}).index_select(0, flat.cells), -100);
  flat.layout = ops::SequenceLayout::packed(lengths).with_positions(spread(flat.cells.remainder(s), 0));
  if (rows.media.visual_rows.defined())
    flat.visual_rows = spread(rows.media.visual_rows.reshape({-1}).index_select(0, flat.cells), -1);
  if (rows.media.audio_rows.defined())
    flat.audio_rows = spread(rows.media.audio_rows.reshape({-1}).index_select(0, flat.cells), -1);
  if (!rows.media.coordinates.defined()) return flat;
  const at::Tensor given = rows.media.coordinates.reshape({3, -1}).index_select(1, flat.cells);
  flat.layout = flat.layout.with_coordinates(at::zeros({3, all}, given.options()).index_copy_(1, flat.tokens, given));
  return flat;
}

// Returns the last columns that the mask keeps and that are not padding; 0 for a row without any. For a value head the
// mask alone decides.
at::Tensor last_columns(const ScoreBatch& batch, const model::ModelConfig& config) {
  at::Tensor kept = at::ones_like(batch.input_ids, at::kBool);
  if (batch.attention_mask.defined()) kept = batch.attention_mask.ne(0);
  const io::Json* pad = model::score_bias(config) ? nullptr : model::config_value(config, "pad_token_id");
  if (pad != nullptr && pad->is_number_integer()) kept = kept.logical_and(batch.input_ids.ne(pad->get<int64_t>()));
  return (at::arange(batch.input_ids.size(1), at::kLong) * kept).argmax(1);
}

// Finds the media. Without labels, every token that is neither padding nor a placeholder is its own label.
Rows rows_of(const ScoreBatch& batch, const model::ModelConfig& config) {
  Rows rows{batch.input_ids, batch.attention_mask, batch.labels,
            place_media(batch.input_ids, batch.attention_mask, batch.media, config)};
  if (config.num_labels > 0) rows.last = last_columns(batch, config);
  if (rows.labels.defined()) return rows;
  rows.labels = rows.input_ids;
  if (rows.attention_mask.defined()) rows.labels = rows.labels.masked_fill(rows.attention_mask.eq(0), -100);
  for (const at::Tensor& placed : {rows.media.visual_rows, rows.media.audio_rows})
    if (placed.defined()) rows.labels = rows.labels.masked_fill(placed.ge(0), -100);
  return rows;
}

// Scores micro-batches on this rank's chunks.
class Scorer {
 public:
  Scorer(const model::VirtualModels& models, bool logits) : models_(models), logits_(logits), passes_(models) {}

  // Returns the number of micro-batches for the next call of run() when `left` are to be scored: with a pipeline,
  // enough to keep its stages busy. It may exceed `left`, because the schedule needs it.
  int group(int64_t left) const {
    const int pp = models_.context().grid().shape().pp;
    return passes_.group(static_cast<int>(std::min<int64_t>(left, pp > 1 ? 4 * pp : 1)));
  }

  // Runs as many micro-batches as group() says. `take` gets the result of each, on the last stage only.
  void run(const std::vector<Rows>& batches, const std::function<void(size_t, const ScoredRows&)>& take) const {
    const comm::Group tp = models_[0].tensor_parallel().group, cp = models_.context().cp();
    const bool splits_tokens = models_[0].tensor_parallel().splits_tokens();
    std::vector<FlatRows> flat;
    std::vector<int64_t> tokens;
    for (const Rows& rows : batches) {
      // Zigzag slices need sequences of multiples of 2·cp; sequence parallelism, a slice of a multiple of tp.
      flat.push_back(flatten(rows, cp.size() > 1 ? 2 * cp.size() : 1, cp.size() * (splits_tokens ? tp.size() : 1)));
      tokens.push_back(flat.back().layout.tokens() / cp.size());
    }
    passes_.run(tokens, [&](const model::GptModel& chunk, const pipeline::StageCall& call) {
      const auto number = static_cast<size_t>(call.microbatch);
      model::ModelInput input = slice_input(flat[number], chunk, call.input);
      if (chunk.place().embedding && flat[number].visual_rows.defined()) {
        input.pixels = batches[number].media.pixels;
        input.grids = batches[number].media.grids;
        input.visual_rows = slice(flat[number].visual_rows, flat[number], chunk);
      }
      if (chunk.place().embedding && flat[number].audio_rows.defined()) {
        input.audio_features = batches[number].media.audio_features;
        input.audio_lengths = batches[number].media.audio_lengths;
        input.audio_rows = slice(flat[number].audio_rows, flat[number], chunk);
      }
      if (!chunk.place().head) return chunk.forward(input);
      take(number, score(chunk, flat[number], batches[number], input));
      return at::Tensor();
    });
  }

 private:
  at::Tensor slice(const at::Tensor& of, const FlatRows& flat, const model::GptModel& chunk) const {
    const comm::Group cp = models_.context().cp();
    return nn::slice_tokens(of, flat.layout, cp.rank(), cp.size()).to(chunk.options().device);
  }

  // The input of a chunk: this context-parallel rank's slice of the tokens.
  model::ModelInput slice_input(const FlatRows& flat, const model::GptModel& chunk, const at::Tensor& hidden) const {
    const comm::Group cp = models_.context().cp();
    model::ModelInput input{
        .layout = nn::slice_layout(flat.layout, cp.rank(), cp.size()), .hidden = hidden, .training = false};
    if (chunk.place().reads_ids()) input.ids = slice(flat.ids, flat, chunk);
    return input;
  }

  // Runs the chunk with the head.
  ScoredRows score(const model::GptModel& chunk, const FlatRows& flat, const Rows& rows,
                   model::ModelInput& input) const {
    const int64_t b = rows.input_ids.size(0), s = rows.input_ids.size(1);
    const comm::Group cp = models_.context().cp();
    // Undoes slicing over cp and packing, in this order.
    // [t, …] of the slice -> [b s, …], with 0 in cells without a token.
    const auto in_cells = [&](const at::Tensor& own) {
      const at::Tensor tokens = nn::gather_slices(own, input.layout, cp).to(at::kCPU, at::kFloat);
      std::vector<int64_t> shape = tokens.sizes().vec();
      shape[0] = b * s;
      return at::zeros(shape, at::kFloat).index_copy_(0, flat.cells, tokens.index_select(0, flat.tokens));
    };
    ScoredRows result;
    if (rows.last.defined()) {
      const at::Tensor scores = in_cells(chunk.forward(input));  // [b s, n]
      result.scores = scores.index_select(0, at::arange(b, at::kLong) * s + rows.last);
      return result;
    }
    if (logits_) {
      const at::Tensor logits = nn::all_gather_columns(chunk.forward(input), chunk.tensor_parallel().group, "logits");
      result.logits = in_cells(logits.narrow(1, 0, chunk.vocab().size)).view({b, s, -1});
    }
    // Labels are shifted before they are sliced: the next token of a slice's last one is on another rank.
    input.targets = slice(model::shift_labels(flat.labels, flat.layout), flat, chunk);
    result.token_losses = in_cells(chunk.forward(input)).view({b, s});
    return result;
  }

  const model::VirtualModels& models_;
  const bool logits_;
  const StagePasses passes_;
};

Rows row_range(const Rows& rows, int64_t first, int64_t count) {
  const auto part = [&](const at::Tensor& t) { return t.defined() ? t.narrow(0, first, count) : t; };
  return {part(rows.input_ids), part(rows.attention_mask), part(rows.labels), rows.media.rows(first, count),
          part(rows.last)};
}

// Scores all rows, those of this rank's replica in turns of `at_a_time`. `take` gets the number of the first row of
// each part, the part and its scores, on the last stage.
void score_all(const model::VirtualModels& models, const Rows& batch, const Scorer& scorer, int64_t at_a_time,
               const std::function<void(int64_t, const Rows&, const ScoredRows&)>& take) {
  const parallel::ParallelContext& context = models.context();
  const comm::Group dp = context.dp();
  const int64_t b = batch.input_ids.size(0), stride = at_a_time * dp.size();
  TaskProgress progress("scoring", TaskProgress::Unit::kCount, b, "sequences", context.rank() == 0);
  // All ranks run the same number of micro-batches, because they may share experts. A rank without rows left repeats
  // the first ones and discards the result.
  for (int64_t next = 0; next < b;) {
    const int group = scorer.group((b - next + stride - 1) / stride);
    std::vector<Rows> parts;
    std::vector<int64_t> first_rows;
    for (int i = 0; i < group; ++i, next += stride) {
      // Rows are dealt out in turns: micro-batch i gives each data-parallel rank `at_a_time` consecutive ones.
      first_rows.push_back(next + at_a_time * dp.rank());
      const int64_t first = first_rows.back() < b ? first_rows.back() : 0;
      parts.push_back(row_range(batch, first, std::min(at_a_time, b - first)));
    }
    scorer.run(parts, [&](size_t number, const ScoredRows& rows) {
      if (first_rows[number] < b) take(first_rows[number], parts[number], rows);
    });
    progress.set(std::min(next, b));
  }
}

// A result: one safetensors file. Its shapes are known beforehand, so all ranks write into it in place, under another
// name until it is complete. Collective.
class ResultFile {
 public:
  ResultFile(const parallel::ParallelContext& context, const fs::path& output, const std::vector<hf::WeightSpec>& specs)
      : output_(output),
        everyone_(context.world().world()),
        first_rank_(context.rank() == 0),
        staged_(output.string() + ".tmp", "score", {.owner = first_rank_, .overwrite = true}),
        writer_(staged_.path(), specs, {.max_shard_bytes = UINT64_MAX}) {
    if (first_rank_) writer_.create_files();
    everyone_.barrier("score: file made");
  }
  hf::WeightWriter& writer() { return writer_; }
  void finish() {
    writer_.sync();
    everyone_.barrier("score: written");
    if (first_rank_) fs::rename(staged_.path() / writer_.file_names().at(0), output_);
  }

 private:
  const fs::path output_;
  const comm::Group everyone_;
  const bool first_rank_;
  io::StagedFolder staged_;
  hf::WeightWriter writer_;
};

// Ranks of one tp and cp group have the same results on the last stage; one of them writes and counts.
bool writes_results(const parallel::ParallelContext& context) {
  return context.place().tp_rank == 0 && context.place().cp_rank == 0;
}

void check_scored(const ScoreBatch& given, const model::ModelConfig& config, int64_t rows) {
  check<ConfigError>(rows > 0, "per_device_eval_batch_size is {}; it must be positive", rows);
  check_token_ids(given.input_ids, config);
}

}  // namespace

ScoredRows score_rows(const model::VirtualModels& models, const ScoreBatch& rows, bool logits) {
  const at::NoGradGuard no_grad;
  check_token_ids(rows.input_ids, models.config());
  const Scorer scorer(models, logits);
  // Where the schedule needs more micro-batches, this one is repeated.
  const std::vector<Rows> batches(static_cast<size_t>(scorer.group(1)), rows_of(rows, models.config()));
  ScoredRows result;
  scorer.run(batches, [&](size_t number, const ScoredRows& scored) {
    if (number == 0) result = scored;
  });
  return result;
}

ScoreTotal score_to_file(const model::VirtualModels& models, const ScoreBatch& given, const fs::path& output,
                         const ScoreOptions& options) {
  const at::NoGradGuard no_grad;
  check_scored(given, models.config(), options.rows);
  check<ConfigError>(models.config().num_labels == 0,
                     "the model scores sequences and predicts no tokens, so tokens have no losses");
  check<ConfigError>(!options.logits || predicts_tokens(models),
                     "the head of {} models does not compute logits; score without them", models.config().family);
  const Rows batch = rows_of(given, models.config());
  const int64_t b = batch.input_ids.size(0), s = batch.input_ids.size(1);
  parallel::ParallelContext& context = models.context();
  std::vector<hf::WeightSpec> specs{{"token_losses", hf::Dtype::kF32, {b, s}}, {"loss", hf::Dtype::kF32, {}}};
  if (options.logits) specs.push_back({"logits", hf::Dtype::kF32, {b, s, models.config().vocab_size}});
  ResultFile file(context, output, specs);
  at::Tensor sums = at::zeros({2}, at::kDouble);  // loss, labeled tokens
  score_all(models, batch, Scorer(models, options.logits), options.rows,
            [&](int64_t first, const Rows& part, const ScoredRows& rows) {
              if (!writes_results(context)) return;
              sums[0] += rows.token_losses.sum(at::kDouble);
              sums[1] += part.labels.narrow(1, 1, s - 1).ne(-100).sum();
              file.writer().write("token_losses", {first, 0}, rows.token_losses);
              if (options.logits) file.writer().write("logits", {first, 0, 0}, rows.logits);
            });
  sums = sums.to(context.device());
  context.world().world().all_reduce(sums, comm::ReduceOp::kSum, "score: loss");
  sums = sums.cpu();
  ScoreTotal total{0, sums[1].to(at::kLong).item<int64_t>()};
  if (total.num_label_tokens > 0) total.loss = sums[0].item<double>() / static_cast<double>(total.num_label_tokens);
  if (context.rank() == 0) file.writer().write("loss", {}, at::scalar_tensor(total.loss, at::kFloat));
  file.finish();
  return total;
}

at::Tensor score_sequences_to_file(const model::VirtualModels& models, const ScoreBatch& given, const fs::path& output,
                                   int64_t rows) {
  const at::NoGradGuard no_grad;
  const model::ModelConfig& config = models.config();
  check_scored(given, config, rows);
  check<ConfigError>(config.num_labels > 0, "the model predicts tokens and has no scores of sequences");
  const Rows batch = rows_of(given, config);
  parallel::ParallelContext& context = models.context();
  const int64_t b = batch.input_ids.size(0);
  ResultFile file(context, output, {{"logits", hf::Dtype::kF32, {b, config.num_labels}}});
  at::Tensor all = at::zeros({b, config.num_labels}, at::kFloat);
  score_all(models, batch, Scorer(models, /*logits=*/false), rows,
            [&](int64_t first, const Rows& /*part*/, const ScoredRows& scored) {
              if (!writes_results(context)) return;
              all.narrow(0, first, scored.scores.size(0)).copy_(scored.scores);
              file.writer().write("logits", {first, 0}, scored.scores);
            });
  all = all.to(context.device());
  context.world().world().all_reduce(all, comm::ReduceOp::kSum, "score: scores");
  file.finish();
  return all.cpu();
}

}  // namespace megalith::inference
