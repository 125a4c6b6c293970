// Lengths follow Hugging Face: max_steps wins over num_train_epochs, and epochs are rounded up to whole steps. With a
// batch size that ramps up, steps per epoch vary, so the length is computed from samples. `epoch` in log lines is a
// fraction of samples for the same reason.
#include "megalith/train/run_length.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "megalith/base/error.h"

namespace megalith::train {

namespace {

// 2.5 epochs of 7 steps are 18 steps.
int64_t round_up(double value) { return static_cast<int64_t>(std::ceil(value)); }

// Returns the steps in the epochs of the run. While the batch size ramps up, epochs have different numbers of steps, so
// their samples are counted instead.
int64_t steps_of_epochs(double epochs, const layout::MicrobatchCalculator& batches, const data::Sampler& sampler,
                        int64_t steps_per_epoch) {
  if (!batches.next_change(0)) return round_up(epochs * static_cast<double>(steps_per_epoch));
  return batches.steps_of(round_up(epochs * static_cast<double>(sampler.options().size)));
}

}  // namespace

RunLength run_length(const LengthSettings& settings, const layout::MicrobatchCalculator& batches,
                     const std::optional<data::Sampler>& sampler) {
  RunLength length;
  const int64_t count = batches.final_global_batch_size();
  length.max_steps = settings.max_steps > 0       ? settings.max_steps
                     : settings.train_samples > 0 ? batches.steps_of(settings.train_samples)
                                                  : 0;
  if (!sampler) {
    check<ConfigError>(length.max_steps > 0, "the length of the data is unknown; set max_steps to the number of steps");
    length.num_train_epochs = 1;
    return length;
  }
  const int64_t steps = sampler->steps_per_epoch(count), size = sampler->options().size;
  check<ConfigError>(steps > 0,
                     "a step takes {} samples and the dataset has {}. Lower per_device_train_batch_size or "
                     "gradient_accumulation_steps, use fewer ranks, or provide more data",
                     count, size);
  length.end = sampler->options().end;
  length.steps_per_epoch = steps;
  // With kDrop and kStop the incomplete last batch of an epoch is not used.
  const bool drops = length.end == data::EpochEnd::kDrop || length.end == data::EpochEnd::kStop;
  length.samples_per_epoch = drops ? steps * count : size;
  if (length.max_steps == 0) {
    length.max_steps = steps_of_epochs(settings.num_train_epochs, batches, *sampler, steps);
    length.num_train_epochs = round_up(settings.num_train_epochs);
  } else {
    length.num_train_epochs = (length.max_steps + steps - 1) / steps;
  }
  check<ConfigError>(length.max_steps > 0,
                     "num_train_epochs is {} and an epoch has {} steps, which makes less than one step; increase "
                     "num_train_epochs or set max_steps",
                     settings.num_train_epochs, steps);
  return length;
}

double RunLength::epoch_after(const data::StepBatch& step) const {
  const auto epoch = static_cast<double>(step.after.epoch);
  // A stream has no length: the whole run counts as one epoch.
  const int64_t samples = samples_per_epoch.value_or(max_steps * step.samples);
  const double part = static_cast<double>(step.after.consumed) / static_cast<double>(samples);
  // With kContinue the last batch of an epoch may reach into the next one; otherwise the last step completes the epoch.
  if (!step.ends_epoch || end == data::EpochEnd::kContinue) return epoch + std::min(1.0, part);
  return step.after.consumed == 0 ? epoch : epoch + 1;
}

// The loader asks before each step, because the batch size may ramp up.
data::ShapeOfStep shape_of_step(const layout::MicrobatchCalculator& batches, int dp_rank) {
  return [batches, dp_rank](int64_t consumed) {
    const layout::BatchSizes sizes = batches.at(consumed);
    check<ConfigError>(sizes.num_microbatches > 0,
                       "after {} samples a step has {} samples, less than one micro-batch of {} on each of {} "
                       "data-parallel ranks; start rampup_batch_size with at least {}",
                       consumed, sizes.global_batch_size, batches.micro_batch_size(), batches.data_parallel_size(),
                       batches.micro_batch_size() * batches.data_parallel_size());
    return data::BatchShape{.micro_batch_size = batches.micro_batch_size(),
                            .num_microbatches = sizes.num_microbatches,
                            .dp_size = batches.data_parallel_size(),
                            .dp_rank = dp_rank};
  };
}

// Interleaved schedules accept only some numbers of micro-batches. During a ramp the first and the last step are
// checked.
void check_pipeline_schedule(const StepSettings& step, const layout::MicrobatchCalculator& batches,
                             std::optional<int64_t> consumed) {
  const auto check_step = [&](int64_t microbatches) {
    const auto problems = layout::problems(step.shape(static_cast<int>(microbatches)));
    check<ConfigError>(problems.empty(), "{} (micro-batches: gradient_accumulation_steps, or global_batch_size)",
                       fmt::join(problems, "; "));
  };
  if (consumed) check_step(shape_of_step(batches, 0)(*consumed).num_microbatches);
  check_step(batches.final_global_batch_size() / (batches.micro_batch_size() * batches.data_parallel_size()));
}

}  // namespace megalith::train
