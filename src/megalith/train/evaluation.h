// The evaluation loop: every sample once, weighted by its tokens, whatever the layout.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "megalith/train/report/metric_list.h"
#include "megalith/train/step/microbatch_runner.h"
#include "megalith/train/training_data.h"

namespace megalith::train {

// Hugging Face's name; predictions and labels are never kept.
struct EvalLoopOutput {
  MetricList metrics;       // each name starts with the prefix
  int64_t num_samples = 0;  // of all ranks
};

struct EvalSettings {
  int64_t micro_batch_size = 1;  // samples a forward pass takes
  int microbatches = 1;          // that are run as a group
  std::string metric_key_prefix = "eval";
  std::function<void()> group_end{};  // behind each group
};

// Micro-batch k has samples [k·size, (k+1)·size) and goes to data-parallel rank k mod dp. Where ranks, or the
// pipeline's schedule, need more micro-batches than there are samples, others of weight 0 fill the group up: the result
// depends on neither dp nor batch size. Gives <prefix>_loss (mean over all labelled tokens), <prefix>_perplexity, the
// objective's metrics, and <prefix>_runtime, _samples_per_second, _steps_per_second (a step: one group on all ranks).
// All ranks call it and get the same. Throws DataError when there is nothing to evaluate: no samples, or no label in
// any.
EvalLoopOutput evaluation_loop(MicrobatchRunner& runner, const EvalData& data, const EvalSettings& settings);

}  // namespace megalith::train
