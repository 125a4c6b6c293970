// The token embedding, its rows (the vocabulary) split over the tensor-parallel group.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"
#include "megalith/ops/loss/cross_entropy.h"

namespace megalith::nn {

// A vocabulary, padded so that every rank holds the same number of rows. Padding rows are zero, have no gradient and
// are never saved or exported.
struct VocabSize {
  int64_t size = 0;    // token ids are 0 … size-1
  int64_t padded = 0;  // a multiple of tp
};
// Returns the ids whose rows (and logits) this rank holds.
ops::VocabRange vocab_range(const VocabSize& vocab, const TensorParallel& tp);

// Looks up rows of a table that is replicated on every rank (learned positions): table [n, h], rows int64 [t]
//   -> [t, h].
at::Tensor table_rows(Parameter& table, const at::Tensor& rows);

// Its parameter is weight [padded/tp, h]: each rank holds the rows of vocab_range().
class VocabParallelEmbedding {
 public:
  // `role` is that of the weight: tied embeddings of the first and the last stage are marked by it.
  VocabParallelEmbedding(const ParameterScope& scope, const VocabSize& vocab, int64_t hidden, Init init,
                         TensorParallel tp, ParameterRole role = ParameterRole::kWeight);

  // ids int64 [t] -> [t, h], or [t/tp, h] with sequence parallelism. On the CPU, throws a DataError that names any id
  // outside the vocabulary; on CUDA, relies on the check in the data layer.
  at::Tensor forward(const at::Tensor& ids) const;
  // The table, for a tied head.
  Parameter& weight() const { return *weight_; }

 private:
  TensorParallel tp_;
  VocabSize vocab_;
  Parameter* weight_;
};

}  // namespace megalith::nn
