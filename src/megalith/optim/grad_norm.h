// The global gradient norm: counts every gradient of the model once, however it is sharded or replicated.
#pragma once

#include <cstdint>
#include <vector>

#include "megalith/optim/optimizer_state.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::optim {

// Statistics of all gradients of a step, still multiplied by the loss scale.
struct GradStats {
  double squares = 0;       // sum of the squared gradients
  double norm = 0;          // square root of `squares`
  bool non_finite = false;  // some gradient is NaN or infinite; `squares` and `norm` are then NaN
  int64_t zeros = 0;        // elements that are exactly zero; counted only on request
};

// Collective over the ranks that together hold one copy of the model and its optimizer state. The result is identical
// bit for bit on all of them, and on the CPU also for every way to cut the buffers into shards. `sharded` says that
// ranks own shards of the buffers (ZeRO-1), which decides the ranks to sum over.
GradStats gradient_stats(const std::vector<StateBlock>& blocks, bool sharded, bool count_zeros,
                         const parallel::ParallelContext& context);

// Returns the L2 norm of the parameters, each counted once, taken from the fp32 main parameters. Collective as above.
double parameter_norm(const std::vector<StateBlock>& blocks, bool sharded, const parallel::ParallelContext& context);

}  // namespace megalith::optim
