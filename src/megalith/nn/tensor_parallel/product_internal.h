// The kinds of Product (product.h), for make_product and its relatives.
#pragma once

#include <memory>

#include "megalith/nn/parameter/low_rank.h"
#include "megalith/nn/tensor_parallel/product.h"

namespace megalith::nn {

// In the dtype of weight and input.
ProductPtr dense_product(Parameter& weight);

// With a weight in 4 or 8 bits, which is frozen.
ProductPtr quantized_product(Parameter& weight);

// With `record` the pass is part of a step, and its magnitudes enter the weight's history (fp8_history.h). Takes any
// number of tokens, which it pads with zeros to fp8_token_multiple().
ProductPtr fp8_product(Parameter& weight, const ops::Fp8Recipe& recipe, bool record);

// Computes dyᵀ x [o, i] of factors in fp8, dy and x by columns; otherwise like Parameter::add_weight_grad.
at::Tensor add_fp8_weight_grad(Parameter& weight, const ops::Fp8Matrix& dy, const at::Tensor& x,
                               const at::Tensor& x_inverse_scale);

// Returns `base` plus `update`, whose factors are `factors`. `update` outlives the product.
ProductPtr low_rank_product(ProductPtr base, const LowRank& update, std::shared_ptr<const LowRankFactors> factors,
                            const ProductInput& input);

// Returns `base`, which is not in fp8, plus `update`, with the rows of the sum scaled to the magnitudes of `update`.
// Computes the norms of these rows at once, which is collective if the inputs of the weight are split. `weight` is
// frozen; it and `update` outlive the product.
ProductPtr dora_product(const Parameter& weight, ProductPtr base, const LowRank& update,
                        std::shared_ptr<const LowRankFactors> factors, const ProductInput& input);

// Returns the gradients of A and B, each computed now or left in its parameter's queue. dy.dy is the gradient of the
// output of `update`, `hidden` and `mask` are those of forward; saved.x and `make_x` as in Product::grad_weights.
std::vector<at::Tensor> factor_grads(const LowRank& update, const std::shared_ptr<const LowRankFactors>& factors,
                                     const OutputGrad& dy, const at::Tensor& hidden, const at::Tensor& mask,
                                     const Saved& saved, const MakeInput& make_x);

// Returns the source of x for grad_weights: `make_x`, or a function that returns saved.x. `parameter` is the one whose
// gradient is computed from it, now or later.
MakeInput input_of(const Saved& saved, const MakeInput& make_x, const Parameter& parameter);

// y += bias + residual in place, skipping those that are absent; for products that cannot add them themselves.
void add_addends_(const at::Tensor& y, const ops::Addends& added);

}  // namespace megalith::nn
