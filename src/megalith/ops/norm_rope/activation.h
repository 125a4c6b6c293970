// The activations of the MLP, fused with the bias or with the gate, each with a backward of its own that saves only its
// input.
//
// Legend: t tokens or rows, f width of the MLP.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/ops/kernel/grad_target.h"

namespace megalith::ops {

enum class Activation { kSilu, kGelu, kGeluTanh, kQuickGelu, kRelu, kSquaredRelu };

// act(gate) * up, with gate and up side by side in a row: [t, 2f] -> [t, f]. SwiGLU is kSilu.
// `row_weights` fp32 [t]: each row of the result times its number, differentiable; undefined: none. On CUDA in the same
// pass, rounded once.
at::Tensor gated_activation(const at::Tensor& gate_up, Activation activation, const at::Tensor& row_weights = {});

// y [t, f] with each row times its number: weights fp32 [t] (fp64 for fp64), in the dtype of y.
at::Tensor weigh_rows(const at::Tensor& y, const at::Tensor& weights);

// act(x + bias): [t, f] -> [t, f]; an undefined bias is none. `target`: of the bias' gradient.
at::Tensor bias_activation(const at::Tensor& x, const at::Tensor& bias, Activation activation,
                           const GradTarget& target = {});

}  // namespace megalith::ops
