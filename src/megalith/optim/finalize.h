// The end of backward: from gradients of this rank's micro-batches to gradients of the global batch.
#pragma once

#include <optional>
#include <vector>

#include "megalith/optim/distributed_data_parallel.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::optim {

// Turns the gradients of this rank's micro-batches into gradients of the global batch. Collective. In Megatron's order:
//   1. reduces over the data-parallel (and context-parallel) ranks, chunk by chunk
//   2. sums over tp the gradients of replicated parameters that saw only this rank's tokens or heads
//   3. sums the tied embeddings of the first and last stage over the embedding group
//   4. with `tokens`, divides by the number of trained tokens in all replicas (by 1 if there are none). `tokens` is the
//      number in this rank's micro-batches: equal on all tp ranks, and read on the last stage only
// Does not wait for a device.
void finalize_gradients(const std::vector<DistributedDataParallel*>& chunks, const parallel::ParallelContext& context,
                        std::optional<int64_t> tokens = std::nullopt);

}  // namespace megalith::optim
