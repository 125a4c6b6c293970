// The operations of this module written with ATen operations, which autograd records itself. Used for devices and
// dtypes without a kernel, and in tests as the definition of what the kernels compute.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "megalith/ops/norm_rope/activation.h"
#include "megalith/ops/norm_rope/norm.h"
#include "megalith/ops/norm_rope/rope.h"

namespace megalith::ops {

// Shapes and results as those of norm, apply_rope, the activations, gated_activation and dropout.
at::Tensor norm_composite(const at::Tensor& x, const NormWeights& weights);
at::Tensor rotate_composite(const at::Tensor& x, const RopeAngles& angles);                   // x [t, n, d]
at::Tensor activate_composite(const at::Tensor& x, Activation activation);                    // any shape
at::Tensor gated_composite(const at::Tensor& gate_up, Activation activation);                 // [t, 2f] -> [t, f]
at::Tensor dropout_composite(const at::Tensor& x, double p, const at::Generator& generator);  // any shape

}  // namespace megalith::ops
