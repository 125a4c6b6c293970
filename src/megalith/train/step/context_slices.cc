#include "megalith/train/step/context_slices.h"

#include "megalith/nn/context_parallel/slice.h"

namespace megalith::train {

std::vector<data::MicroBatch> context_slices(std::span<const data::MicroBatch> batches,
                                             const parallel::ParallelContext& context) {
  std::vector<data::MicroBatch> slices(batches.begin(), batches.end());
  const int rank = context.place().cp_rank, size = context.grid().shape().cp;
  if (size == 1) return slices;
  for (data::MicroBatch& batch : slices) {
    for (at::Tensor* tokens : {&batch.ids, &batch.labels})
      if (tokens->defined()) *tokens = nn::slice_tokens(*tokens, batch.layout, rank, size);
    batch.layout = nn::slice_layout(batch.layout, rank, size);
  }
  return slices;
}

}  // namespace megalith::train
