#include "megalith/ops/gemm/residual.h"

#include <ATen/ATen.h>

#include "megalith/base/error.h"
#include "megalith/ops/gemm/residual_internal.h"
#include "megalith/ops/kernel/device_internal.h"
#include "megalith/ops/kernel/tensor_internal.h"

namespace megalith::ops {

void add_bias_residual_(const at::Tensor& y, const at::Tensor& bias, const at::Tensor& residual) {
  check(y.dim() == 2 && y.is_contiguous() && residual.sizes() == y.sizes() && bias.numel() == y.size(1),
        "add_bias_residual_ on {} got a bias of {} and a residual of {}", shape_text(y), shape_text(bias),
        shape_text(residual));
  if (!has_kernel(y) || residual.scalar_type() != y.scalar_type()) {
    y.add_(residual).add_(bias);
    return;
  }
  const at::Tensor rows = residual.contiguous();
  const bool raw = y.is_cuda() && bias.scalar_type() == y.scalar_type();
  const at::Tensor added = (raw ? bias.detach() : bias.detach().to(acc_dtype(y))).contiguous();
  if constexpr (kCudaKernels) {
    if (y.is_cuda())
      return add_bias_residual_cuda(y.scalar_type(), y.mutable_data_ptr(), added.const_data_ptr(), raw,
                                    rows.const_data_ptr(), y.size(0), y.size(1), stream_of(y));
  }
  add_bias_residual_cpu(y.scalar_type(), y.mutable_data_ptr(), added.const_data_ptr(), rows.const_data_ptr(), y.size(0),
                        y.size(1));
}

}  // namespace megalith::ops
