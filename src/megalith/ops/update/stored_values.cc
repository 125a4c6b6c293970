// Checks and dispatch of stored_values.h: fp32 is used where it lies, CUDA and the CPU have kernels, and any other
// device sends its elements to the host and back. Formats are told apart here, once, so that kernels need no checks.
#include "megalith/ops/update/stored_values.h"

#include <ATen/ATen.h>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/tensor_internal.h"
#include "megalith/ops/update/stored_values_internal.h"

namespace megalith::ops {

namespace {

void check_stored(const StoredValues& stored, const at::Tensor& numbers) {
  const int64_t n = stored.numel();
  check(numbers.scalar_type() == at::kFloat && numbers.is_contiguous() && numbers.numel() == n &&
            numbers.device() == stored.values.device() && stored.values.is_contiguous(),
        "{} stored values got {} numbers that are not contiguous fp32 on the same device", n, numbers.numel());
  if (stored.is_direct()) return;
  check(n % kScaleBlock == 0, "{} stored values are not a multiple of {}", n, kScaleBlock);
  if (stored.high.defined())
    check(stored.values.scalar_type() == at::kShort && stored.high.scalar_type() == at::kBFloat16 &&
              stored.high.numel() == n,
          "halves of fp32 numbers are int16 and bf16");
  else
    check(has_scales(stored.values.scalar_type()) && stored.scales.numel() == n / kScaleBlock,
          "{} elements of {} got {} scales", n, c10::toString(stored.values.scalar_type()), stored.scales.numel());
}

// A device without kernels: the host does the work.
StoredValues on_host(const StoredValues& stored) {
  const auto moved = [](const at::Tensor& t) { return t.defined() ? t.cpu() : t; };
  return {moved(stored.values), moved(stored.scales), moved(stored.high)};
}

const uint16_t* bits_of(const at::Tensor& bf16) { return static_cast<const uint16_t*>(bf16.const_data_ptr()); }

}  // namespace

int64_t StoredValues::bytes() const {
  return static_cast<int64_t>(values.nbytes() + (scales.defined() ? scales.nbytes() : 0));
}

StoredValues StoredValues::slice(int64_t begin, int64_t end) const {
  check(is_direct() || (begin % kScaleBlock == 0 && end % kScaleBlock == 0),
        "stored values are cut at {} and {}, which are not multiples of {}", begin, end, kScaleBlock);
  StoredValues part{.values = values.narrow(0, begin, end - begin)};
  if (scales.defined()) part.scales = scales.narrow(0, begin / kScaleBlock, (end - begin) / kScaleBlock);
  if (high.defined()) part.high = high.narrow(0, begin, end - begin);
  return part;
}

double stored_bytes(at::ScalarType format) {
  return static_cast<double>(c10::elementSize(format)) +
         (has_scales(format) ? static_cast<double>(sizeof(float)) / kScaleBlock : 0);
}

void read_values(const StoredValues& from, const at::Tensor& to) {
  check_stored(from, to);
  if (from.is_direct()) {
    to.copy_(from.values);
    return;
  }
  if (!has_kernel(to)) {
    const at::Tensor numbers = at::empty_like(to, to.options().device(at::kCPU));
    read_values(on_host(from), numbers);
    to.copy_(numbers);
    return;
  }
  const int64_t n = to.numel();
  auto* numbers = to.mutable_data_ptr<float>();
  if (from.high.defined()) {
    const at::Tensor high = from.high.to(to.device());
    const auto* low = from.values.const_data_ptr<int16_t>();
    if constexpr (kCudaKernels) {
      if (to.is_cuda()) return join_halves_cuda(bits_of(high), low, n, numbers, stream_of(to));
    }
    return join_halves_cpu(bits_of(high), low, n, numbers);
  }
  const auto* scales = from.scales.const_data_ptr<float>();
  if constexpr (kCudaKernels) {
    if (to.is_cuda())
      return read_scaled_cuda(from.values.scalar_type(), from.values.const_data_ptr(), scales, n, numbers,
                              stream_of(to));
  }
  read_scaled_cpu(from.values.scalar_type(), from.values.const_data_ptr(), scales, n, numbers);
}

void write_values(const at::Tensor& from, const StoredValues& to) {
  check_stored(to, from);
  if (to.is_direct()) {
    to.values.copy_(from);
    return;
  }
  if (!has_kernel(from)) {
    const StoredValues host = on_host(to);
    write_values(from.cpu(), host);
    to.values.copy_(host.values);
    if (to.scales.defined()) to.scales.copy_(host.scales);
    if (to.high.defined()) to.high.copy_(host.high);
    return;
  }
  const int64_t n = from.numel();
  const auto* numbers = from.const_data_ptr<float>();
  if (to.high.defined()) {
    const bool same_device = to.high.device() == from.device();
    const at::Tensor high = same_device ? to.high : at::empty({n}, from.options().dtype(at::kBFloat16));
    auto* bits = static_cast<uint16_t*>(high.mutable_data_ptr());
    auto* low = to.values.mutable_data_ptr<int16_t>();
    if (kCudaKernels && from.is_cuda()) {
      if constexpr (kCudaKernels) split_halves_cuda(numbers, n, bits, low, stream_of(from));
    } else {
      split_halves_cpu(numbers, n, bits, low);
    }
    if (!same_device) to.high.copy_(high);
    return;
  }
  auto* scales = to.scales.mutable_data_ptr<float>();
  if constexpr (kCudaKernels) {
    if (from.is_cuda())
      return write_scaled_cuda(to.values.scalar_type(), numbers, n, to.values.mutable_data_ptr(), scales,
                               stream_of(from));
  }
  write_scaled_cpu(to.values.scalar_type(), numbers, n, to.values.mutable_data_ptr(), scales);
}

}  // namespace megalith::ops
