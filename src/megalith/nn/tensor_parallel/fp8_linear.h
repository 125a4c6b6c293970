// The three products of a linear layer in 8-bit floating point: y = x Wᵀ, dx = dy W, dW = dyᵀ x.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/ops/gemm/fp8.h"

namespace megalith::nn {

// What forward keeps for backward: x in the order in which backward reads it, a byte an element; the weight as it is,
// to be cast again the way it was.
struct Fp8Factors {
  at::Tensor x_columns, x_inverse_scale;  // [i, t]; as Fp8Matrix
  at::Tensor weight;                      // [o, i]
  at::Tensor w_scale;                     // fp32 [1]; undefined: found again
};

// Whether x [t, i] and weight [o, i] are multiplied in fp8: where `recipe` asks for it, and their sizes allow it.
bool applies_fp8(const std::optional<ops::Fp8Recipe>& recipe, const at::Tensor& x, const at::Tensor& weight);

// x Wᵀ [t, o], in the dtype of x. `record`: a pass that is part of a step, for the history of the weight.
struct Fp8Forward {
  at::Tensor y;
  Fp8Factors factors;
};
Fp8Forward fp8_forward(const at::Tensor& x, const Parameter& weight, const ops::Fp8Recipe& recipe, bool record);

// dy [t, o] as both backward products take it.
ops::Fp8Matrix fp8_gradient(const at::Tensor& dy, const Parameter& weight, const ops::Fp8Recipe& recipe);
// dy W [t, i], in `dtype`.
at::Tensor fp8_grad_x(const ops::Fp8Matrix& dy, const Fp8Factors& factors, const ops::Fp8Recipe& recipe,
                      at::ScalarType dtype);
// dyᵀ x [o, i]: as Parameter::add_weight_grad.
at::Tensor add_fp8_weight_grad(Parameter& weight, const ops::Fp8Matrix& dy, const Fp8Factors& factors);

}  // namespace megalith::nn
