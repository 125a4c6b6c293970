// The kinds of Product (product.h), for those that put them together.
#pragma once

#include <memory>

#include "megalith/nn/parameter/low_rank.h"
#include "megalith/nn/tensor_parallel/product.h"

namespace megalith::nn {

ProductPtr dense_product(Parameter& weight);

// Whether `tokens` rows and `weight` [o, i] are multiplied in fp8: where `recipe` asks for it, and their sizes allow
// it.
bool applies_fp8(const std::optional<ops::Fp8Recipe>& recipe, int64_t tokens, const at::Tensor& weight);
// `record`: the pass is part of a step, and is seen by the weight's history (fp8_history.h).
ProductPtr fp8_product(Parameter& weight, const ops::Fp8Recipe& recipe, bool record);

// `base` with `update`, whose factors are `factors`, beside it. `update` outlives it.
ProductPtr low_rank_product(ProductPtr base, const LowRank& update, std::shared_ptr<const LowRankFactors> factors,
                            const ProductInput& input);

// What grad_weights takes for x: `make_x`, or saved.x as it is.
MakeInput input_of(const Saved& saved, const MakeInput& make_x);

// y += bias + residual, as far as they are there, in place: where a product could not add them itself.
void add_addends_(const at::Tensor& y, const ops::Addends& added);

}  // namespace megalith::nn
