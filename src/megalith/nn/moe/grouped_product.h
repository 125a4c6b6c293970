// Grouped GEMM as a Product (tensor_parallel/product.h): each group of rows is multiplied by its own matrix.
#pragma once

#include <cstdint>
#include <optional>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/nn/tensor_parallel/product.h"
#include "megalith/ops/gemm/grouped_gemm.h"

namespace megalith::nn {

// Returns the product x_n W_nᵀ of every group n, x [r, i] -> [r, o]. `counts` gives the rows per group; `weight`
// [n · o, i] stacks the groups' matrices. In fp8 if attach_grouped_fp8 has said so. Includes the weight's low-rank
// update if one is active. Takes no addends.
ProductPtr make_grouped_product(Parameter& weight, const ops::GroupCounts& counts);

// A layer calls it for a stacked weight of `groups` matrices: notes whether their products are in fp8
// (ops/gemm/grouped_fp8.h). They are if there is a recipe, whichever, both sizes of a matrix are multiples of 16, and
// the device has the kernel. Weight gradients stay in the dtype of the activations.
void attach_grouped_fp8(Parameter& weight, int64_t groups, const std::optional<ops::Fp8Recipe>& recipe);

}  // namespace megalith::nn
