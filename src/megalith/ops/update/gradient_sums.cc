// Chooses between our kernels, which add straight into fp32 sums, and ATen's operations.
#include "megalith/ops/update/gradient_sums.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/tensor_internal.h"
#include "megalith/ops/update/gradient_sums_internal.h"

namespace megalith::ops {

// On CUDA the sum is fp32 and goes straight to the target, if there is one; without, it is rounded once.
at::Tensor bias_grad(const at::Tensor& dy, const GradTarget& target) {
  check(dy.dim() == 2, "bias_grad takes rows [t, h]; it got {}", shape_text(dy));
  if constexpr (kCudaKernels) {
    if (on_cuda_kernel(dy)) {
      const at::Tensor rows = dy.contiguous();
      const bool there = target.wanted(dy);
      const at::Tensor sums = there ? target.sum : floats_for(dy, dy.size(1));
      const at::Tensor workspace = floats_for(dy, bias_grad_workspace_cuda(dy.size(0), dy.size(1)));
      bias_grad_cuda(rows.scalar_type(), rows.const_data_ptr(), rows.size(0), rows.size(1),
                     sums.mutable_data_ptr<float>(), there && target.take_add(), workspace.mutable_data_ptr<float>(),
                     stream_of(dy));
      return there ? at::Tensor() : sums.to(dy.scalar_type());
    }
  }
  return dy.sum(0);
}

void add_to_rows_(const at::Tensor& sums, const at::Tensor& rows, const at::Tensor& dy) {
  check(sums.dim() == 2 && sums.is_contiguous() && dy.dim() == 2 && dy.size(1) == sums.size(1) && rows.dim() == 1 &&
            rows.size(0) == dy.size(0) && rows.scalar_type() == at::kLong,
        "add_to_rows_ got sums {}, rows {} and gradients {}; it takes [v, h], int64 [t] and [t, h]", shape_text(sums),
        shape_text(rows), shape_text(dy));
  if constexpr (kCudaKernels) {
    // The kernel adds atomically: not for runs that must repeat bit for bit.
    const bool any_order = !at::globalContext().deterministicAlgorithms();
    if (any_order && on_cuda_kernel(dy) && sums.is_cuda() && sums.scalar_type() == at::kFloat) {
      const at::Tensor from = dy.contiguous(), where = rows.contiguous();
      return add_to_rows_cuda(from.scalar_type(), sums.mutable_data_ptr<float>(), where.const_data_ptr<int64_t>(),
                              from.const_data_ptr(), dy.size(0), dy.size(1), stream_of(dy));
    }
  }
  sums.index_add_(0, rows, dy.to(sums.scalar_type()));
}

}  // namespace megalith::ops
