// The operations of this module in ATen's own, which record their own history: for devices without a kernel. They say
// what the kernels compute; tests hold both against the definitions.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "megalith/ops/norm_rope/activation.h"
#include "megalith/ops/norm_rope/norm.h"
#include "megalith/ops/norm_rope/rope.h"

namespace megalith::ops {

at::Tensor norm_composite(const at::Tensor& x, const NormWeights& weights);
at::Tensor rotate_composite(const at::Tensor& x, const RopeAngles& angles);                   // x [t, n, d]
at::Tensor activate_composite(const at::Tensor& x, Activation activation);                    // any shape
at::Tensor gated_composite(const at::Tensor& gate_up, Activation activation);                 // [t, 2f] -> [t, f]
at::Tensor dropout_composite(const at::Tensor& x, double p, const at::Generator& generator);  // any shape

}  // namespace megalith::ops
