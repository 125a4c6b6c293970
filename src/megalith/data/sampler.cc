// The sampler has no state: a step is a function of the position, and the position of the next step is part of the
// answer. So a checkpoint stores two numbers, ranks need not talk to agree on samples, and a run that resumes with
// another number of ranks or another batch size continues exactly where the data was left.
#include "megalith/data/sampler.h"

#include <algorithm>
#include <functional>

#include "megalith/base/error.h"
#include "megalith/data/random.h"

namespace megalith::data {

namespace {

// The order of samples in one epoch. It is computed on the fly (Permutation), so a dataset of any size costs no memory
// and resuming costs no time; by length, one group at a time is held, sorted.
class EpochOrder {
 public:
  EpochOrder(const SamplerOptions& options, int64_t epoch)
      : options_(options), shuffled_(options.size, mix_seed(options.seed, static_cast<uint64_t>(epoch))) {}

  // Returns the sample at a place in the epoch.
  int64_t operator[](int64_t place) {
    if (!options_.shuffle) return place;
    if (!options_.by_length) return shuffled_[place];
    const int64_t first = place / options_.length_group() * options_.length_group();
    if (first != first_) sort_group(first);
    return group_[static_cast<size_t>(place - first)];
  }

 private:
  // Equal lengths keep their shuffled order, so that the result is the same everywhere.
  void sort_group(int64_t first) {
    first_ = first;
    group_.clear();
    const int64_t end = std::min(first + options_.length_group(), options_.size);
    for (int64_t place = first; place < end; ++place) group_.push_back(shuffled_[place]);
    const std::vector<int32_t>& lengths = *options_.lengths;
    std::ranges::stable_sort(group_, std::greater(),
                             [&lengths](int64_t sample) { return lengths[static_cast<size_t>(sample)]; });
  }

  SamplerOptions options_;  // shares the lengths
  Permutation shuffled_;
  int64_t first_ = -1;          // place of the group's first sample; -1: no group yet
  std::vector<int64_t> group_;  // the samples of the group, the longest first
};

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  check<DataError>(options.size > 0, "the dataset is empty: there is nothing to train on");
  check(!options.by_length || (options.shuffle && options.lengths && std::ssize(*options.lengths) == options.size),
        "grouping {} samples by length needs their lengths, and shuffling", options.size);
}

// Example, 10 samples, 4 per step, after 8 consumed: kDrop gives samples 0 to 3 of epoch 1, kWrap 8 9 0 1 of epoch 0,
// kContinue 8 9 of epoch 0 and 0 1 of epoch 1, kStop the end.
std::optional<SampledStep> Sampler::step(const SamplerPosition& position, int64_t count) const {
  check(position.epoch >= 0 && position.consumed >= 0 && count > 0, "position {}/{}, {} samples", position.epoch,
        position.consumed, count);
  const int64_t size = options_.size;
  const bool partial = options_.end == EpochEnd::kDrop || options_.end == EpochEnd::kStop;
  SamplerPosition at = position;
  // Nothing is left of this epoch, or too little for a step: begin the next one, if there is one.
  if (at.consumed >= size || (partial && size - at.consumed < count)) {
    if (options_.end == EpochEnd::kStop) return std::nullopt;
    check<ConfigError>(!partial || count <= size,
                       "a step takes {} samples and the dataset has {}. Lower per_device_train_batch_size or "
                       "gradient_accumulation_steps, use fewer ranks, or give more data",
                       count, size);
    at = {at.epoch + 1, 0};
  }
  SampledStep result;
  const int64_t first_epoch = at.epoch;
  EpochOrder order(options_, at.epoch);
  for (int64_t i = 0; i < count; ++i) {
    if (at.consumed == size && options_.end == EpochEnd::kContinue) {
      at = {at.epoch + 1, 0};
      order = EpochOrder(options_, at.epoch);
    }
    // kWrap: beyond the end, the order of this epoch starts again.
    result.samples.push_back(order[at.consumed % size]);
    ++at.consumed;
  }
  const int64_t left = size - at.consumed;
  // kDrop: samples that are too few for a step of this size are not skipped in the position, so a run that resumes with
  // a smaller batch still sees them.
  result.after = left <= 0 && options_.end != EpochEnd::kStop ? SamplerPosition{at.epoch + 1, 0} : at;
  result.ends_epoch = result.after.epoch != first_epoch || left <= 0 || (partial && left < count);
  return result;
}

int64_t Sampler::steps_per_epoch(int64_t count) const {
  const bool rounds_up = options_.end == EpochEnd::kWrap || options_.end == EpochEnd::kContinue;
  return (options_.size + (rounds_up ? count - 1 : 0)) / count;
}

// kDrop and kWrap: every epoch takes whole steps, so its length in consumed samples is steps * count.
SamplerPosition Sampler::position_of(int64_t consumed_samples, int64_t count) const {
  switch (options_.end) {
    case EpochEnd::kContinue:
      return {consumed_samples / options_.size, consumed_samples % options_.size};
    case EpochEnd::kStop:
      check<ConfigError>(consumed_samples < options_.size,
                         "no samples left to consume: {} of {} are consumed. Give more data, fewer training steps, or "
                         "start from the beginning",
                         consumed_samples, options_.size);
      return {0, consumed_samples};
    case EpochEnd::kDrop:
    case EpochEnd::kWrap:
      break;
  }
  const int64_t steps = steps_per_epoch(count);
  check<ConfigError>(steps > 0,
                     "a step takes {} samples and the dataset has {}. Lower the batch size, use fewer ranks, or give "
                     "more data",
                     count, options_.size);
  return {consumed_samples / (steps * count), consumed_samples % (steps * count)};
}

// Megatron's order: consecutive chunks of micro_batch_size go to the data-parallel ranks in turn. With 2 ranks and
// chunks of 2, samples 0 … 7 give rank 0 {0 1}, {4 5} and rank 1 {2 3}, {6 7}.
std::vector<std::vector<int64_t>> deal(const std::vector<int64_t>& samples, const BatchShape& shape) {
  check(std::ssize(samples) == shape.samples() && shape.dp_rank < shape.dp_size, "{} samples for {} places",
        samples.size(), shape.samples());
  std::vector<std::vector<int64_t>> result;
  for (int64_t m = 0; m < shape.num_microbatches; ++m) {
    const auto from = samples.begin() + (m * shape.dp_size + shape.dp_rank) * shape.micro_batch_size;
    result.emplace_back(from, from + shape.micro_batch_size);
  }
  return result;
}

}  // namespace megalith::data
