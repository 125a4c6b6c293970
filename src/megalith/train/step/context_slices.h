// The parts of micro-batches that a context-parallel rank works on.
#pragma once

#include <span>
#include <vector>

#include "megalith/data/collator.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::train {

// Ids, labels and layout are this rank's slices; counts (loss_tokens, samples, …) stay those of the whole. With one
// context-parallel rank: the micro-batches themselves.
std::vector<data::MicroBatch> context_slices(std::span<const data::MicroBatch> batches,
                                             const parallel::ParallelContext& context);

}  // namespace megalith::train
