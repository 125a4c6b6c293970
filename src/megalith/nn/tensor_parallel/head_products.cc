// Casts and products of head_products_internal.h. The gradient of a logit is between -g and g if g is that of the loss:
// its scale is known before the numbers are.
#include <ATen/ATen.h>

#include <cmath>

#include "megalith/nn/parameter/weight_grad_queue.h"
#include "megalith/nn/tensor_parallel/head_products_internal.h"
#include "megalith/nn/tensor_parallel/mappings.h"
#include "megalith/nn/tensor_parallel/product_internal.h"
#include "megalith/ops/gemm/gemm.h"

namespace megalith::nn {

namespace {

// Returns x with rows of zeros up to a multiple of 16.
at::Tensor padded(const at::Tensor& x) {
  const int64_t beyond = x.size(0) % 16;
  return beyond == 0 ? x : at::constant_pad_nd(x, {0, 0, 0, 16 - beyond});
}

}  // namespace

HeadProducts::HeadProducts(Parameter& weight, const std::optional<ops::Fp8Recipe>& fp8, Wanted wanted)
    : weight_(weight), fp8_(fp8), wanted_(wanted) {
  const at::Tensor value = weight.value.detach();
  if (fp8_ && ops::fits_fp8(value.size(0), value.size(1)))
    weight8_ = ops::to_fp8(value, {.columns = wanted_.input_grad});
}

at::Tensor HeadProducts::logits(const at::Tensor& x) {
  y_.reset();  // before the next ones are made, which are as large
  dy8_ = {};
  x_ = x.detach();
  if (!in_fp8()) return y_ = ops::gemm(x_, weight_.value.detach().t(), {}, weight_.kernels());
  x8_ = ops::to_fp8(padded(x_), {.columns = fp8_weight_grad()});
  y_ = ops::fp8_mm(x8_.rows, x8_.inverse_scale, weight8_.rows, weight8_.inverse_scale, x.scalar_type(), /*fast=*/true,
                   weight_.kernels());
  return y_.narrow(0, 0, x.size(0));
}

void HeadProducts::start_backward(std::optional<double> largest) {
  if (!in_fp8()) return;
  ops::Fp8Cast cast{.kind = fp8_->gradients(), .rows = wanted_.input_grad, .columns = fp8_weight_grad()};
  if (largest && *largest != 0)
    cast.scale = at::full({1}, ops::reach_of(cast.kind) / std::abs(*largest), y_.options().dtype(at::kFloat));
  dy8_ = ops::to_fp8(y_, cast);
}

void HeadProducts::grad_input(const at::Tensor& dx) const {
  if (!in_fp8()) return ops::gemm_out(dx, y_, weight_.value.detach(), weight_.kernels());
  if (y_.size(0) == dx.size(0))
    return ops::add_fp8_mm(dx, dy8_.rows, dy8_.inverse_scale, weight8_.columns, weight8_.columns_inverse_scale, 0,
                           weight_.kernels());
  dx.copy_(ops::fp8_mm(dy8_.rows, dy8_.inverse_scale, weight8_.columns, weight8_.columns_inverse_scale,
                       dx.scalar_type(), /*fast=*/false, weight_.kernels())
               .narrow(0, 0, dx.size(0)));
}

// A queue holds what the product needs, but not the history of x. Nothing else writes to it afterwards.
at::Tensor HeadProducts::add_weight_grad() const {
  const auto add = [&weight = weight_, fp8 = fp8_weight_grad(), x8 = x8_, dy8 = dy8_, x = x_,
                    dy = y_.narrow(0, 0, x_.size(0))] {
    return fp8 ? add_fp8_weight_grad(weight, dy8, x8.columns, x8.columns_inverse_scale) : weight.add_weight_grad(dy, x);
  };
  if (!weight_.grad.defers() || !weight_.grad.queue->keeps_logits()) return add();
  weight_.grad.queue->add(add);
  return {};
}

at::Tensor reduce_head_grad(const at::Tensor& dx, const TensorParallel& tp) {
  if (tp.splits_tokens()) return reduce_scatter_rows(dx, tp.group, "loss backward");
  tp.group.all_reduce(dx, comm::ReduceOp::kSum, "loss backward");
  return dx;
}

}  // namespace megalith::nn
