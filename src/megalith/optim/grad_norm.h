// The global gradient norm: every gradient of the model counted once, whoever holds it.
#pragma once

#include <cstdint>
#include <vector>

#include "megalith/optim/optimizer_state.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::optim {

struct GradStats {
  double squares = 0;       // sum over the gradients as they are
  double norm = 0;          // its root
  bool non_finite = false;  // some gradient is NaN or infinite; both are then NaN
  int64_t zeros = 0;        // elements that are exactly zero; where asked for
};

// Collective: over the ranks that together hold one copy of the model and its optimizer state. The result is the same
// on all of them, and for any way in which the buffers are cut into shards, bit for bit.
GradStats gradient_stats(const std::vector<StateBlock>& blocks, bool sharded, bool count_zeros,
                         const parallel::ParallelContext& context);

// The L2 norm of the parameters, each counted once; main parameters where there are any. Collective as above.
double parameter_norm(const std::vector<StateBlock>& blocks, bool sharded, const parallel::ParallelContext& context);

}  // namespace megalith::optim
