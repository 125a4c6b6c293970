// Sampler: decides which samples a step takes, and which of them belong to this data-parallel rank.
//
// A run asks for one step after the other; the position is all that a checkpoint keeps of the data:
//
//   const Sampler sampler({.size = 1000, .seed = 42});
//   SamplerPosition at;                                   // or that of a checkpoint
//   while (const auto step = sampler.step(at, 32)) {      // 32 samples, the same on all ranks
//     const auto microbatches = deal(step->samples, shape);  // those of this rank
//     at = step->after;
//   }
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace megalith::data {

// Treatment of the last samples of an epoch, if they are fewer than a step takes.
enum class EpochEnd {
  kDrop,      // they are dropped and the next epoch begins (Hugging Face's drop_last)
  kWrap,      // the step is filled up with the epoch's first samples; every sample is seen at least once
  kContinue,  // the step is filled up from the next epoch: an endless stream, every sample once per epoch
  kStop,      // they are dropped and the data ends: Megatron's `single`
};

// run::epoch_sampler and run::megatron_sampler make these from the options. The order of a run's samples is a function
// of these alone; changing one changes the data of a resumed run.
struct SamplerOptions {
  int64_t size = 0;     // number of samples in the dataset
  bool shuffle = true;  // a different order in each epoch; false: in the order of the dataset
  uint64_t seed = 42;
  EpochEnd end = EpochEnd::kDrop;
  // Sorts each length_group() samples of the shuffled order by length, the longest first, so that samples of a
  // micro-batch need little padding. Needs shuffle, and `lengths` before a Sampler is made.
  bool by_length = false;
  std::shared_ptr<const std::vector<int32_t>> lengths{};  // tokens of each sample; nullptr unless by_length

  // Independent of the batch size, so that a run may continue with another one. A quarter of a small dataset, so that
  // epochs still differ.
  int64_t length_group() const { return std::clamp<int64_t>(size / 4, 1, 4096); }
};

// How much of the data all ranks together have consumed. The order of samples depends only on the seed and the epoch,
// so a run that resumes here, with any number of ranks and any batch size, continues with the samples not yet seen.
struct SamplerPosition {
  int64_t epoch = 0;
  int64_t consumed = 0;  // samples of this epoch
  bool operator==(const SamplerPosition&) const = default;
};

// The samples of one step, in order.
struct SampledStep {
  std::vector<int64_t> samples;
  SamplerPosition after;  // start of the next step
  // An epoch ends with this step: the next step of this size belongs to another epoch, or there is none.
  bool ends_epoch = false;
};

// Stateless: results depend only on the arguments. Any thread may call it; copies are cheap.
class Sampler {
 public:
  // Throws a DataError if there are no samples.
  explicit Sampler(const SamplerOptions& options);

  // Returns the next `count` samples; std::nullopt at the end of the data (kStop). Throws a ConfigError, with advice,
  // if a whole epoch has fewer than `count` samples (kDrop).
  std::optional<SampledStep> step(const SamplerPosition& position, int64_t count) const;

  // Returns the number of steps of `count` samples in a whole epoch; may be 0.
  int64_t steps_per_epoch(int64_t count) const;

  // Returns the position after `consumed_samples` in total, for checkpoints that store only this number (Megatron's).
  // Exact for kContinue and kStop; for kDrop and kWrap the batch size `count` must not have changed. Throws a
  // ConfigError under kStop if no samples are left.
  SamplerPosition position_of(int64_t consumed_samples, int64_t count) const;

  const SamplerOptions& options() const { return options_; }

 private:
  SamplerOptions options_;
};

// How the samples of a step are distributed. Micro-batch m of data-parallel rank r gets micro_batch_size samples from
// (m * dp_size + r) * micro_batch_size on. dp_rank is this rank; the other numbers are equal on all ranks.
struct BatchShape {
  int64_t micro_batch_size = 1;
  int64_t num_microbatches = 1;
  int64_t dp_size = 1;
  int64_t dp_rank = 0;

  int64_t samples() const { return micro_batch_size * num_microbatches * dp_size; }  // per step, over all ranks
};

// Returns the samples of each micro-batch of this rank. `samples` are those of the whole step, in order; there must be
// shape.samples() of them.
std::vector<std::vector<int64_t>> deal(const std::vector<int64_t>& samples, const BatchShape& shape);

}  // namespace megalith::data
