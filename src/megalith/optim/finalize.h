// The end of backward: from gradients of this rank's micro-batches to gradients of the global batch.
#pragma once

#include <optional>
#include <vector>

#include "megalith/optim/distributed_data_parallel.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::optim {

// Collective. In the order of the reference:
//   1. reduction over data (and context) parallel ranks, per chunk
//   2. sum over tp of replicated parameters of which each tp rank saw its tokens or heads only
//   3. sum over the embedding group of tied embeddings on the first and last stage
//   4. with `tokens`, the number of trained tokens in this rank's micro-batches (equal on tp ranks; read on the last
//   stage
//      only): division by the number of all replicas together, or by 1 when there are none
void finalize_gradients(const std::vector<DistributedDataParallel*>& chunks, const parallel::ParallelContext& context,
                        std::optional<int64_t> tokens = std::nullopt);

}  // namespace megalith::optim
