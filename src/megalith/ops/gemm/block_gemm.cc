// Chooses how blocks of rows are multiplied; see the table in the header.
#include "megalith/ops/gemm/block_gemm.h"

#include <ATen/ATen.h>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/tensor_internal.h"

namespace megalith::ops {

namespace {

// Whether each block [m, …] follows the one before it, so that all of them are one matrix.
bool is_one_matrix(const at::Tensor& blocks) {
  return blocks.size(0) == 1 || blocks.stride(0) == blocks.size(1) * blocks.stride(1);
}

// Returns blocks that are one matrix as such: [r, m, n] -> [r m, n].
at::Tensor as_matrix(const at::Tensor& blocks) {
  return blocks.as_strided({blocks.size(0) * blocks.size(1), blocks.size(2)}, {blocks.stride(1), blocks.stride(2)});
}

}  // namespace

void block_gemm_out(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const GemmKernels& kernels) {
  check(a.dim() == 3 && b.dim() == 2 && out.dim() == 3 && a.size(2) == b.size(0) && out.size(0) == a.size(0) &&
            out.size(1) == a.size(1) && out.size(2) == b.size(1),
        "block_gemm_out got blocks of {}, a matrix of {} and a result of {}", shape_text(a), shape_text(b),
        shape_text(out));
  if (out.numel() == 0) return;
  if (is_one_matrix(a) && is_one_matrix(out)) return gemm_out(as_matrix(out), as_matrix(a), b, kernels);
  if (out.is_cuda()) {
    if (kernels.plans != nullptr && kernels.plans->run(out, a, b, {}, /*beta=*/0, /*alpha=*/1, kernels.choice)) return;
    at::Tensor into = out;
    at::bmm_out(into, a, b.unsqueeze(0).expand({a.size(0), b.size(0), b.size(1)}));
    return;
  }
  for (int64_t r = 0; r < a.size(0); ++r) gemm_out(out.select(0, r), a.select(0, r), b, kernels);
}

}  // namespace megalith::ops
