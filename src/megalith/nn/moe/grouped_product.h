// The product of groups of rows with a matrix each, as a Product (tensor_parallel/product.h).
#pragma once

#include "megalith/nn/parameter/parameter.h"
#include "megalith/nn/tensor_parallel/product.h"
#include "megalith/ops/gemm/grouped_gemm.h"

namespace megalith::nn {

// x [r, i], `counts` rows of it for each group; `weight` [n · o, i] holds the groups' matrices one below the other ->
// x_n W_nᵀ of every group, [r, o], with the update of the weight where one is active. Has no addends.
ProductPtr make_grouped_product(Parameter& weight, const ops::GroupCounts& counts);

}  // namespace megalith::nn
