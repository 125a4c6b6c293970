// A stage that only takes time: a stand-in layer that sleeps in forward, in backward, and for its weight gradient.
#pragma once

#include <chrono>

#include "megalith/nn/parameter/weight_grad_queue.h"
#include "megalith/pipeline/forward_backward.h"
#include "tests/support/run_ranks.h"

namespace megalith::testing {

struct SleepTimes {
  std::chrono::microseconds forward, backward, weight_gradient;
};

// x, after a while. With a queue that records, the weight gradient sleeps when the queue runs.
at::Tensor sleep_through(const at::Tensor& x, const SleepTimes& times, nn::WeightGradQueue* queue);

// Runs one step of `shape` on pp rank threads; seconds from the common start to the last rank's end.
double time_sleeping_step(const layout::PipelineShape& shape, const SleepTimes& times, bool overlap);

}  // namespace megalith::testing
