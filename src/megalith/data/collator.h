// Collator: turns samples into a micro-batch, by the built-in rules or by a user-defined function.
//
//   const data::Collator collator(options, [](std::span<const data::Sample> samples, const data::Collator& built_in) {
//     data::MicroBatch batch = built_in.collate(samples);
//     batch.extras["weight"] = {my_weights(samples, batch)};   // [t], see MicroBatch
//     return batch;
//   });
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>

#include "megalith/data/micro_batch.h"
#include "megalith/data/sample.h"
#include "megalith/layout/media_positions.h"

namespace megalith::media {
class ImageProcessor;
class SoundProcessor;
class VideoProcessor;
}  // namespace megalith::media

namespace megalith::data {

// How sequences are brought to a length. kLongest and kFixed give a dense layout, unless rows are packed neatly.
enum class Padding {
  kLongest,  // all sequences as long as the longest: the dense attention path
  kFixed,    // all sequences of fixed_length
  kNone,     // each sequence keeps its own length: the packed attention path
};

// Options of a Collator. The same on all ranks of a run: each collates on its own, and the layouts must agree.
struct CollatorOptions {
  int32_t pad_id = 0;
  Padding padding = Padding::kLongest;
  int64_t length_multiple = 1;  // padded sequences have a multiple of this length; if packed, the total has
  int64_t fixed_length = 0;     // for kFixed; a longer row is an error
  int64_t cp = 1;               // sequences become multiples of 2·cp if cp > 1
  int64_t tp = 1;               // the total becomes a multiple of cp·tp
  std::shared_ptr<const media::ImageProcessor> images{};  // nullptr: samples with images are refused
  std::shared_ptr<const media::VideoProcessor> videos{};  // likewise
  std::shared_ptr<const media::SoundProcessor> sounds{};  // likewise
  int media_threads = 1;                                  // that decode the media of a micro-batch
  // How the model counts the coordinates of tokens in rows with media (ModelConfig::media); std::nullopt: it has one
  // position per token.
  std::optional<layout::PositionSettings> positions{};

  // The length of every sequence must be a multiple of the first, the total number of tokens of the second.
  int64_t sequence_multiple() const { return cp > 1 ? 2 * cp : 1; }
  int64_t total_multiple() const { return std::lcm(sequence_multiple(), cp * tp); }
};

// kLayoutOnly leaves out ids and labels, for pipeline stages between the first and the last. All stages get the extra
// tensors.
enum class CollateParts { kAll, kLayoutOnly };

class Collator;

// A user-defined collator. `built_in` is the run's built-in collator with the same options. The function may extend the
// batch of `built_in` or make one from scratch:
//   ids, labels  int64 [rows, tokens], or [t] with a layout; labels already shifted to where they are predicted
//   extras       any, see MicroBatch; if ids are [rows, tokens], extras of tokens also begin with [rows, tokens]
//   real_tokens  number of tokens without padding; if left 0, all tokens count
// The rest is filled in. Every sequence must have a length that padded_length() returns, so that it can be cut for
// context-parallel ranks.
//
// It must be a pure function of the samples: each rank of a replica calls it, on the thread of its loader, and a
// resumed run calls it again.
using CollateFunction = std::function<MicroBatch(std::span<const Sample> samples, const Collator& built_in)>;

// Immutable and thread-safe. The same samples give the same layout on every rank. collate() allocates the tensors of
// the batch and nothing else; it never touches a device.
class Collator {
 public:
  // Throws a ConfigError for sizes that are not positive.
  explicit Collator(const CollatorOptions& options) : Collator(options, {}) {}
  // Uses a user-defined function instead of the built-in rules.
  Collator(const CollatorOptions& options, CollateFunction own);

  // Built-in rules: rows whose pieces do not attend to one another always take the packed path, without the padding of
  // the row. Preference pairs become all chosen rows, then all rejected rows. Fields of the rows become extra tensors.
  // Throws a ConfigError for a row longer than fixed_length, and a DataError for fields that do not fit their rows or
  // one another.
  //
  // The result of a user-defined function must be as CollateFunction says; otherwise throws a DataError that names the
  // tensor, its shape and what is allowed. The returned batch is token-major and complete, as from the built-in rules.
  MicroBatch collate(std::span<const Sample> samples, CollateParts parts = CollateParts::kAll) const;

  const CollatorOptions& options() const { return options_; }
  // Whether a user-defined function is used.
  bool is_own() const { return own_ != nullptr; }
  // Returns the smallest allowed length >= `tokens` for sequences of equal length.
  int64_t padded_length(int64_t tokens) const;

 private:
  MicroBatch collate_built_in(std::span<const Sample> samples, CollateParts parts) const;

  CollatorOptions options_;
  CollateFunction own_;
};

}  // namespace megalith::data
