// Checks and dispatch of eight_bit.h. A device without kernels sends its numbers to the host and back.
#include "megalith/ops/quantize/eight_bit.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/tensor_internal.h"
#include "megalith/ops/quantize/eight_bit_internal.h"

namespace megalith::ops {

namespace {

EightBitTensor eight_bit_on(const EightBitTensor& tensor, at::Device device) {
  return {tensor.codes.to(device), tensor.scales.to(device)};
}

}  // namespace

EightBitTensor to_eight_bit(const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  check(x.dim() == 2, "only matrices are quantized to 8 bits, not a tensor {}", shape_text(x));
  if (!has_kernel(x)) return eight_bit_on(to_eight_bit(x.cpu()), x.device());
  const at::Tensor numbers = x.detach().to(at::kHalf).contiguous();
  EightBitTensor tensor{at::empty(x.sizes(), numbers.options().dtype(at::kChar)),
                        at::empty({x.size(0)}, numbers.options().dtype(at::kFloat))};
  const auto* from = numbers.const_data_ptr<c10::Half>();
  auto* codes = tensor.codes.mutable_data_ptr<int8_t>();
  auto* scales = tensor.scales.mutable_data_ptr<float>();
  if (numbers.is_cpu()) {
    quantize_eight_bit_cpu(from, x.size(0), x.size(1), codes, scales);
  } else if constexpr (kCudaKernels) {
    quantize_eight_bit_cuda(from, x.size(0), x.size(1), codes, scales, stream_of(numbers));
  }
  return tensor;
}

at::Tensor from_eight_bit(const EightBitTensor& tensor, at::ScalarType dtype) {
  const at::Tensor to = at::empty(tensor.codes.sizes(), tensor.codes.options().dtype(dtype));
  read_eight_bit(tensor, 0, 0, to);
  return to;
}

EightBitTensor cut_eight_bit(const EightBitTensor& whole, const MatrixRectangle& where, at::Device device) {
  const at::NoGradGuard no_grad;
  check(where.whole_columns == whole.codes.size(1), "a rectangle of a matrix of {} columns was given one of {}",
        where.whole_columns, whole.codes.size(1));
  check_inside(where, whole.codes.numel());
  const at::Tensor rows = whole.codes.narrow(0, where.first_row, where.rows);
  return eight_bit_on({rows.narrow(1, where.first_column, where.columns).clone(at::MemoryFormat::Contiguous),
                       whole.scales.narrow(0, where.first_row, where.rows).clone()},
                      device);
}

void read_eight_bit(const EightBitTensor& matrix, int64_t row, int64_t column, const at::Tensor& to) {
  check_fills(to, row, column, matrix.codes.size(0), matrix.codes.size(1));
  if (to.numel() == 0) return;
  if (!has_kernel(to)) {
    const at::Tensor numbers = at::empty_like(to, to.options().device(at::kCPU));
    read_eight_bit(eight_bit_on(matrix, at::kCPU), row, column, numbers);
    const at::NoGradGuard no_grad;
    to.copy_(numbers);
    return;
  }
  const int64_t stride = matrix.codes.size(1);
  const EightBitSlice slice{.codes = matrix.codes.const_data_ptr<int8_t>() + row * stride + column,
                            .scales = matrix.scales.const_data_ptr<float>() + row,
                            .stride = stride,
                            .rows = to.size(0),
                            .columns = to.size(1)};
  if constexpr (kCudaKernels) {
    if (to.is_cuda()) return read_eight_bit_cuda(slice, to.scalar_type(), to.mutable_data_ptr(), stream_of(to));
  }
  read_eight_bit_cpu(slice, to.scalar_type(), to.mutable_data_ptr());
}

}  // namespace megalith::ops
