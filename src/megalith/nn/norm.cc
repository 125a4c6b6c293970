// Weights start as 1 (0 if stored as w - 1), biases as 0. Only tp rank 0 writes them to files: `replica` is the tp
// rank.
#include "megalith/nn/norm.h"

namespace megalith::nn {

Norm::Norm(const ParameterScope& scope, const NormShape& shape, bool partial_grad, int tp_rank) : shape_(shape) {
  weight_ = &scope.add({.name = "weight",
                        .init = shape.zero_centered ? Init::zeros() : Init::ones(),
                        .partial_grad_over_tp = partial_grad,
                        .replica = tp_rank},
                       {shape.size});
  if (shape.kind == ops::NormKind::kLayer)
    bias_ = &scope.add({.name = "bias", .partial_grad_over_tp = partial_grad, .replica = tp_rank}, {shape.size});
}

ops::NormWeights Norm::weights() const {
  return {shape_.kind,
          weight_->value,
          bias_ ? bias_->value : at::Tensor(),
          shape_.epsilon,
          shape_.zero_centered,
          weight_->grad.target(),
          bias_ ? bias_->grad.target() : ops::GradTarget(),
          weight_->value.scalar_type()};
}

}  // namespace megalith::nn
