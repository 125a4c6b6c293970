// Passes over gradient buffers. The CPU sums exactly (ExactSum), so that the gradient norm is the same for every way of
// cutting buffers over ranks and threads; CUDA sums each buffer in fp64 in a fixed order, and the host adds those sums.
// One sum of squares serves as norm and as check for NaN: it is not finite if any gradient is not.
#include "megalith/ops/update/flat_buffer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/tensor_internal.h"
#include "megalith/ops/update/flat_buffer_internal.h"

namespace megalith::ops {

namespace {

// Buffers of any shape are accepted as long as their memory is one stretch.
void check_flat(const char* name, const at::Tensor& flat) {
  check(flat.is_contiguous() && flat.is_floating_point(), "{} takes contiguous floating-point numbers", name);
}

// For devices without a kernel: fp64 sums of blocks, copied to the host.
void add_squares_composite(const at::Tensor& flat, ExactSum& sum) {
  const int64_t whole = flat.numel() / kFlatBlock * kFlatBlock;
  const auto add = [&sum](const at::Tensor& sums) {
    const at::Tensor host = sums.cpu();
    for (int64_t i = 0; i < host.numel(); ++i) sum.add(host.const_data_ptr<double>()[i]);
  };
  const at::Tensor all = flat.view(-1);
  if (whole > 0) add(all.narrow(0, 0, whole).view({-1, kFlatBlock}).to(at::kDouble).square().sum(1));
  if (whole < flat.numel())
    add(all.narrow(0, whole, flat.numel() - whole).to(at::kDouble).square().sum(0, /*keepdim=*/true));
}

// Returns the sums of squares, fp64 [flats], on the device. One workspace serves all: launches of a stream are in
// order.
at::Tensor sums_on_cuda(std::span<const at::Tensor> flats) {
  const auto doubles = flats[0].options().dtype(at::kDouble);
  const at::Tensor sums = at::empty({std::ssize(flats)}, doubles);
  const at::Tensor workspace = at::empty({add_squares_workspace_cuda()}, doubles);
  for (size_t i = 0; i < flats.size(); ++i)
    add_squares_cuda(flats[i].scalar_type(), flats[i].const_data_ptr(), flats[i].numel(),
                     sums.mutable_data_ptr<double>() + i, workspace.mutable_data_ptr<double>(), stream_of(flats[i]));
  return sums;
}

// The host waits once for all tensors.
void add_squares_on_cuda(const std::vector<at::Tensor>& flats, ExactSum& sum) {
  if (flats.empty()) return;
  const at::Tensor host = sums_on_cuda(flats).cpu();
  for (int64_t i = 0; i < host.numel(); ++i) sum.add(host.const_data_ptr<double>()[i]);
}

}  // namespace

void add_squares(std::span<const at::Tensor> flats, ExactSum& sum) {
  std::vector<at::Tensor> on_cuda;
  for (const at::Tensor& flat : flats) {
    check_flat("add_squares", flat);
    if (on_cuda_kernel(flat))
      on_cuda.push_back(flat);
    else if (flat.is_cpu())
      add_squares_cpu(flat.scalar_type(), flat.const_data_ptr(), flat.numel(), sum);
    else
      add_squares_composite(flat, sum);
  }
  if constexpr (kCudaKernels) add_squares_on_cuda(on_cuda, sum);
}

at::Tensor sum_of_squares(const at::Tensor& flat) { return sums_of_squares(std::span(&flat, 1)).select(0, 0); }

at::Tensor sums_of_squares(std::span<const at::Tensor> flats) {
  check(!flats.empty(), "sums_of_squares takes at least one tensor");
  for (const at::Tensor& flat : flats) check_flat("sums_of_squares", flat);
  if constexpr (kCudaKernels) {
    if (std::ranges::all_of(flats, on_cuda_kernel)) return sums_on_cuda(flats);
  }
  std::vector<at::Tensor> sums;
  for (const at::Tensor& flat : flats) {
    if (flat.is_cpu()) {
      ExactSum sum;
      add_squares(flat, sum);
      sums.push_back(at::scalar_tensor(sum.value(), at::kDouble));
    } else {
      sums.push_back(flat.to(at::kDouble).square().sum());
    }
  }
  return at::stack(sums);
}

int64_t count_zeros(const at::Tensor& flat) {
  check_flat("count_zeros", flat);
  if (!flat.is_cpu()) return flat.numel() - at::count_nonzero(flat).item<int64_t>();
  return count_zeros_cpu(flat.scalar_type(), flat.const_data_ptr(), flat.numel());
}

bool scale_and_check_(const at::Tensor& flat, double factor) { return scale_and_flag_(flat, factor).item<int>() == 0; }

at::Tensor scale_and_flag_(const at::Tensor& flat, double factor) {
  check_flat("scale_and_flag_", flat);
  if (flat.is_cpu()) {
    const bool finite = scale_and_check_cpu(flat.scalar_type(), flat.mutable_data_ptr(), flat.numel(), factor);
    return at::scalar_tensor(finite ? 0 : 1, at::kInt);
  }
  if constexpr (kCudaKernels) {
    if (on_cuda_kernel(flat)) {
      const at::Tensor broken = at::zeros({}, flat.options().dtype(at::kInt));
      scale_and_check_cuda(flat.scalar_type(), flat.mutable_data_ptr(), flat.numel(), factor,
                           broken.mutable_data_ptr<int>(), stream_of(flat));
      return broken;
    }
  }
  const at::Tensor broken = at::isfinite(flat).all().logical_not().to(at::kInt);
  if (factor != 1) flat.mul_(factor);
  return broken;
}

}  // namespace megalith::ops
