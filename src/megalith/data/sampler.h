// Which samples a step takes, and which of them this data-parallel rank.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace megalith::data {

// What happens where an epoch has fewer samples left than a step takes.
enum class EpochEnd {
  kDrop,      // they are left out, the next epoch begins (Hugging Face's drop_last)
  kWrap,      // the step is filled up with the epoch's first samples; every sample is seen at least once
  kContinue,  // the step is filled up from the next epoch: an endless stream, every sample once an epoch
  kStop,      // they are left out and the data has ended: Megatron's `single`
};

// run::epoch_sampler and run::megatron_sampler make it from options.
struct SamplerOptions {
  int64_t size = 0;     // samples of the dataset
  bool shuffle = true;  // another order each epoch; false: as they are numbered
  uint64_t seed = 42;
  EpochEnd end = EpochEnd::kDrop;
};

// How far the data has been consumed: by all ranks together, in an order that depends on the seed and the epoch alone.
// A run that resumes here, with any number of ranks and any batch size, sees the samples not seen yet.
struct SamplerPosition {
  int64_t epoch = 0;
  int64_t consumed = 0;  // samples of this epoch
  bool operator==(const SamplerPosition&) const = default;
};

// The samples of one step, in order.
struct SampledStep {
  std::vector<int64_t> samples;
  SamplerPosition after;  // where the next step begins
  bool ends_epoch =
      false;  // an epoch has ended with this step: the next one of this size is of another, or there is none
};

// Pure: the answer depends on the arguments alone.
class Sampler {
 public:
  // Throws DataError when there are no samples.
  explicit Sampler(const SamplerOptions& options);

  // The `count` samples that come next; nothing at the end of the data (kStop). Throws ConfigError when an epoch has
  // fewer than `count` samples in all (kDrop), saying what to change.
  std::optional<SampledStep> step(const SamplerPosition& position, int64_t count) const;

  // Steps of an epoch that starts at its beginning; at least 0.
  int64_t steps_per_epoch(int64_t count) const;

  // The position after `consumed_samples` in all, for drivers that keep only this number (Megatron's). Exact for
  // kContinue and kStop. kDrop and kWrap need the batch size, which must not have changed. Throws ConfigError under
  // kStop when no samples are left.
  SamplerPosition position_of(int64_t consumed_samples, int64_t count) const;

  const SamplerOptions& options() const { return options_; }

 private:
  int64_t sample_at(const SamplerPosition& position) const;

  SamplerOptions options_;
};

// How a step's samples are dealt: micro-batch m of data-parallel rank r has samples [(m * size + r) * micro_batch_size,
// …).
struct BatchShape {
  int64_t micro_batch_size = 1;
  int64_t num_microbatches = 1;
  int64_t dp_size = 1;
  int64_t dp_rank = 0;

  int64_t samples() const { return micro_batch_size * num_microbatches * dp_size; }  // of a step, all ranks
};

// The samples of each micro-batch of this rank.
std::vector<std::vector<int64_t>> deal(const std::vector<int64_t>& samples, const BatchShape& shape);

}  // namespace megalith::data
