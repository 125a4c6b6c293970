// A norm layer: RMSNorm or LayerNorm with its parameters.
#pragma once

#include <string>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/ops/norm_rope/norm.h"

namespace megalith::nn {

// Kind and size of a norm.
struct NormShape {
  ops::NormKind kind = ops::NormKind::kRms;
  int64_t size = 0;  // elements of a row
  double epsilon = 1e-5;
  bool zero_centered = false;  // weights stored as w - 1
};

// Its parameters are weight [size] and, for LayerNorm, bias [size]. Blocks call ops::norm_fork with weights(), so that
// backward adds the gradient of the residual in the same pass; forward() is the plain norm.
class Norm {
 public:
  // Parameters are replicated over tp. With `partial_grad` each tp rank sees only part of the tokens (sequence
  // parallelism) or of the heads (query and key norms), so that gradients must be summed over tp.
  Norm(const ParameterScope& scope, const NormShape& shape, bool partial_grad, int tp_rank);

  // Returns the parameters in the form that ops::norm takes.
  ops::NormWeights weights() const;
  // [..., size] -> the same shape, in the dtype of the parameters: that of the layer after the norm, even if the
  // residual stream is kept in fp32.
  at::Tensor forward(const at::Tensor& x) const { return ops::norm(x, weights()); }

 private:
  NormShape shape_;
  Parameter* weight_;
  Parameter* bias_ = nullptr;
};

}  // namespace megalith::nn
