// Activations of the MLP, fused with the bias or with the gate. Each has a hand-written backward that saves only its
// input.
//
// Legend: t tokens or rows, f width of the MLP.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/ops/kernel/grad_target.h"

namespace megalith::ops {

// The activation function a(x) of an MLP.
enum class Activation {
  kSilu,        // x σ(x)
  kGelu,        // x Φ(x), with Φ the normal distribution function
  kGeluTanh,    // GELU by its tanh approximation
  kQuickGelu,   // x σ(1.702 x)
  kRelu,        // max(x, 0)
  kSquaredRelu  // max(x, 0)²
};

// Returns act(gate) * up, with gate and up side by side in a row: [t, 2f] -> [t, f]. SwiGLU is kSilu.
// `row_weights`, fp32 [t], multiplies each row of the result and is differentiable; undefined means no weights. On CUDA
// this happens in the same pass and is rounded once.
at::Tensor gated_activation(const at::Tensor& gate_up, Activation activation, const at::Tensor& row_weights = {});

// Multiplies each row of y [t, f] by its weight, fp32 [t] (fp64 for fp64). Returns the dtype of y.
at::Tensor weigh_rows(const at::Tensor& y, const at::Tensor& weights);

// Returns act(x + bias): [t, f] -> [t, f]; the bias may be undefined. `target` receives the gradient of the bias.
at::Tensor bias_activation(const at::Tensor& x, const at::Tensor& bias, Activation activation,
                           const GradTarget& target = {});

}  // namespace megalith::ops
