// CUDA kernel of grouped_gemm.h over raw pointers.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace megalith::ops {

// Sizes of a call.
struct GroupProducts {
  c10::ScalarType dtype;     // type of the sums: fp32 or bf16
  int64_t groups, elements;  // elements per group, a multiple of 8
  double beta;               // factor of the sums before the addition
};
// Computes dw[n] = beta · dw[n] + products[n] for each group n with rows, and beta · dw[n] for the others, whose
// products are not read; with beta = 0 dw is not read. products is bf16 [g, elements], dw [g, elements], and ends [g]
// is one past the last row of each group.
void add_group_products_cuda(const GroupProducts& sizes, const void* products, const int* ends, void* dw, void* stream);

}  // namespace megalith::ops
