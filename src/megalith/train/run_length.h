// The length of a run and its progress in steps, epochs and samples.
#pragma once

#include <cstdint>
#include <optional>

#include "megalith/data/batch_loader.h"
#include "megalith/data/sampler.h"
#include "megalith/layout/microbatches.h"
#include "megalith/train/settings/trainer_settings.h"

namespace megalith::train {

// The length of a run with every default resolved.
struct RunLength {
  int64_t max_steps = 0;
  int64_t num_train_epochs = 0;                // rounded up; 1 for streams
  std::optional<int64_t> steps_per_epoch;      // with the final batch size; std::nullopt for streams
  std::optional<int64_t> samples_per_epoch;    // samples of an epoch that are used
  data::EpochEnd end = data::EpochEnd::kDrop;  // treatment of the samples left over at the end of an epoch
  bool operator==(const RunLength&) const = default;

  // Returns the passes over the data after a step, with a fraction. A stream counts as one epoch of the run's length.
  double epoch_after(const data::StepBatch& step) const;
};

// Resolves the length. max_steps > 0: that many steps, ceil(max_steps / steps per epoch) epochs. train_samples: as many
// steps as consume that many samples. Otherwise ceil(num_train_epochs · steps per epoch) steps or, while the batch size
// ramps up, the steps that consume the samples of these epochs. Throws ConfigError when the length is unknown (a stream
// without max_steps) or 0, or when one step takes more samples than there are.
RunLength run_length(const LengthSettings& length, const layout::MicrobatchCalculator& batches,
                     const std::optional<data::Sampler>& sampler);

// Returns a function from consumed samples to the shape of the next step on one data-parallel rank. The function throws
// ConfigError for a step without micro-batches (a ramp that starts below one micro-batch per rank), with which the run
// would never end.
data::ShapeOfStep shape_of_step(const layout::MicrobatchCalculator& batches, int dp_rank);

// Checks that the pipeline can run the step after `consumed` samples (std::nullopt: not known yet) and the last step.
// Throws ConfigError naming the numbers of micro-batches that the schedule accepts.
void check_pipeline_schedule(const StepSettings& step, const layout::MicrobatchCalculator& batches,
                             std::optional<int64_t> consumed);

}  // namespace megalith::train
