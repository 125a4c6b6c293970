// The CUDA kernel of grouped_gemm.h, over raw pointers.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace megalith::ops {

struct GroupProducts {
  c10::ScalarType dtype;     // of the sums
  int64_t groups, elements;  // elements: of a group, a multiple of 8
  double beta;
};
// dw[n] = beta · dw[n] + products[n] for each group n that has rows, beta · dw[n] for the others, whatever their
// products hold; with beta 0 dw is not read. products bf16 [g, elements], dw [g, elements], ends [g]: the row behind
// each group.
void add_group_products_cuda(const GroupProducts& sizes, const void* products, const int* ends, void* dw, void* stream);

}  // namespace megalith::ops
