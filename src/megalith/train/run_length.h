// How long a run is, and how far it has come: steps, epochs, samples.
#pragma once

#include <cstdint>
#include <optional>

#include "megalith/data/batch_loader.h"
#include "megalith/data/sampler.h"
#include "megalith/layout/microbatches.h"
#include "megalith/train/settings/trainer_settings.h"

namespace megalith::train {

struct RunLength {
  int64_t max_steps = 0;
  int64_t num_train_epochs = 0;                // rounded up; streams: 1
  std::optional<int64_t> steps_per_epoch;      // with the final batch size; streams: not known
  std::optional<int64_t> samples_per_epoch;    // that are used of an epoch
  data::EpochEnd end = data::EpochEnd::kDrop;  // of an epoch
  bool operator==(const RunLength&) const = default;

  // Passes over the data, with a fraction, after a step. Streams: their length is taken for that of the run.
  double epoch_after(const data::StepBatch& step) const;
};

// max_steps > 0: that many steps, ceil(max_steps / steps per epoch) epochs. train_samples: the steps that so many
// samples make. Otherwise ceil(num_train_epochs · steps per epoch) steps; while the batch size grows, the steps that
// the samples of these epochs make. Throws ConfigError when the length is not known (a stream without max_steps), is 0,
// or a step takes more samples than there are.
RunLength run_length(const LengthSettings& length, const layout::MicrobatchCalculator& batches,
                     const std::optional<data::Sampler>& sampler);

// The shape of the step at some number of consumed samples, for one data-parallel rank. The function throws ConfigError
// for a step of no micro-batches (a ramp that starts below one micro-batch a rank), which would never end.
data::ShapeOfStep shape_of_step(const layout::MicrobatchCalculator& batches, int dp_rank);

// The pipeline can run the step after `consumed` samples (nothing: not known yet) and the last one. Throws ConfigError,
// naming numbers of micro-batches that its schedule takes.
void check_pipeline_schedule(const StepSettings& step, const layout::MicrobatchCalculator& batches,
                             std::optional<int64_t> consumed);

}  // namespace megalith::train
