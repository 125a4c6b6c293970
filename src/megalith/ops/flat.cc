#include "megalith/ops/flat.h"

#include <ATen/ATen.h>

#include "megalith/base/error.h"
#include "megalith/ops/flat_internal.h"

namespace megalith::ops {

namespace {

void check_flat(const char* name, const at::Tensor& flat) {
  check(flat.is_contiguous() && flat.is_floating_point(), "{} takes contiguous floating-point numbers", name);
}

// Elsewhere than on the CPU: fp64 sums of the blocks, brought to the host.
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

}  // namespace

void add_squares(const at::Tensor& flat, ExactSum& sum) {
  check_flat("add_squares", flat);
  if (!flat.is_cpu()) return add_squares_composite(flat, sum);
  add_squares_cpu(flat.scalar_type(), flat.const_data_ptr(), flat.numel(), sum);
}

int64_t count_zeros(const at::Tensor& flat) {
  check_flat("count_zeros", flat);
  if (!flat.is_cpu()) return flat.numel() - at::count_nonzero(flat).item<int64_t>();
  return count_zeros_cpu(flat.scalar_type(), flat.const_data_ptr(), flat.numel());
}

bool scale_and_check_(const at::Tensor& flat, double factor) {
  check_flat("scale_and_check_", flat);
  if (flat.is_cpu()) return scale_and_check_cpu(flat.scalar_type(), flat.mutable_data_ptr(), flat.numel(), factor);
  const bool finite = at::isfinite(flat).all().item<bool>();
  if (factor != 1) flat.mul_(factor);
  return finite;
}

}  // namespace megalith::ops
