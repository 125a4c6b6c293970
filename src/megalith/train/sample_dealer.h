// SampleDealer: every sample of a dataset once, dealt to the data-parallel ranks.
#pragma once

#include <cstdint>

#include "megalith/parallel/parallel_context.h"
#include "megalith/train/training_data.h"

namespace megalith::train {

// Micro-batch k has samples [k·size, (k+1)·size) and goes to data-parallel rank k mod dp. Where some rank has one more
// than another, or a schedule needs more, there are others of weight 0. `data` and `context` outlive it.
class SampleDealer {
 public:
  // Throws DataError when there are no samples.
  SampleDealer(const EvalData& data, int64_t micro_batch_size, const parallel::ParallelContext& context);

  int64_t samples() const { return samples_; }
  // Micro-batches that some rank has to run; not all have so many.
  int64_t microbatches() const;
  // The number of the first sample of this rank's m-th; may lie beyond the data.
  int64_t first_sample(int64_t m) const { return (m * dp_ + dp_rank_) * size_; }
  // This rank's m-th; beyond the data one without samples, tokens or labels that count.
  data::MicroBatch microbatch(int64_t m) const;

 private:
  const EvalData& data_;
  const int64_t size_, dp_, dp_rank_;
  const data::CollateParts parts_;
  const int64_t samples_;
};

}  // namespace megalith::train
