// The products of a head whose loss is computed by chunks of tokens (linear_cross_entropy.h), in the weight's dtype or
// in fp8.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"
#include "megalith/ops/gemm/fp8.h"

namespace megalith::nn {

// For each chunk: logits(), after which the caller overwrites the logits by their gradient, then start_backward() and
// the gradients. In fp8 every tensor has a scale of its own, whatever the recipe, and the weight is cast once for all
// chunks: a pass over it costs as much as a chunk's product saves.
class HeadProducts {
 public:
  // The gradients that will be asked for.
  struct Wanted {
    bool input_grad = false, weight_grad = false;
  };
  // The products are in fp8 if `fp8` is set and the weight's sizes are multiples of 16. `weight` outlives the object.
  HeadProducts(Parameter& weight, const std::optional<ops::Fp8Recipe>& fp8, Wanted wanted);

  // x [c, h] -> x Wᵀ [c, v], contiguous.
  at::Tensor logits(const at::Tensor& x);
  // The latest logits are now their gradient dy, which is at most `largest` in magnitude, if that is known.
  void start_backward(std::optional<double> largest = std::nullopt);
  // dy W into dx [c, h].
  void grad_input(const at::Tensor& dx) const;
  // Adds dyᵀ x [v, h] to the weight's gradient as Parameter::add_weight_grad does, or leaves it in a queue that keeps
  // logits (weight_grad_queue.h).
  at::Tensor add_weight_grad() const;

 private:
  bool in_fp8() const { return weight8_.rows.defined(); }
  bool fp8_weight_grad() const { return in_fp8() && wanted_.weight_grad && fp8_->weight_gradients; }

  Parameter& weight_;
  const std::optional<ops::Fp8Recipe> fp8_;
  const Wanted wanted_;
  ops::Fp8Matrix weight8_;  // defined in fp8 only
  // The latest chunk. In fp8 the logits have rows of zeros up to a multiple of 16.
  at::Tensor x_, y_;
  ops::Fp8Matrix x8_, dy8_;
};

// Sums dx [t, h] over the ranks of tp, each of which has the part from its columns of the vocabulary: into dx itself,
// or with sequence parallelism to this rank's [t/tp, h].
at::Tensor reduce_head_grad(const at::Tensor& dx, const TensorParallel& tp);

}  // namespace megalith::nn
