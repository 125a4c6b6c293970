// Grouped GEMM as a Product (tensor_parallel/product.h): each group of rows is multiplied by its own matrix.
#pragma once

#include "megalith/nn/parameter/parameter.h"
#include "megalith/nn/tensor_parallel/product.h"
#include "megalith/ops/gemm/grouped_gemm.h"

namespace megalith::nn {

// Returns the product x_n W_nᵀ of every group n, x [r, i] -> [r, o]. `counts` gives the rows per group; `weight`
// [n · o, i] stacks the groups' matrices. Includes the weight's low-rank update if one is active. Takes no addends.
ProductPtr make_grouped_product(Parameter& weight, const ops::GroupCounts& counts);

}  // namespace megalith::nn
