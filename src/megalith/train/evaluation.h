// The evaluation loop: every sample counts once, weighted by its tokens, in every layout.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "megalith/train/report/metric_list.h"
#include "megalith/train/step/microbatch_runner.h"
#include "megalith/train/training_data.h"

namespace megalith::train {

// The result, under Hugging Face's name; predictions and labels are never kept.
struct EvalLoopOutput {
  MetricList metrics;       // each name starts with the prefix
  int64_t num_samples = 0;  // over all ranks
};

// How an evaluation runs.
struct EvalSettings {
  int64_t micro_batch_size = 1;  // samples per forward pass
  int microbatches = 1;          // micro-batches that run as one group
  std::string metric_key_prefix = "eval";
  std::function<void()> group_end{};  // called after each group
};

// Evaluates all of `data`. Micro-batch k has samples [k·size, (k+1)·size) and goes to data-parallel rank k mod dp. If
// ranks or the pipeline's schedule need more micro-batches than there are samples, micro-batches of weight 0 fill up
// the group, so the result depends neither on dp nor on the batch size. Returns <prefix>_loss (mean over all labeled
// tokens), <prefix>_perplexity, the objective's metrics, and <prefix>_runtime, _samples_per_second and
// _steps_per_second (one step is one group on all ranks). Collective over all ranks, with the same result on each.
// Throws DataError when there are no samples, or no labels in any of them.
EvalLoopOutput evaluation_loop(MicrobatchRunner& runner, const EvalData& data, const EvalSettings& settings);

}  // namespace megalith::train
