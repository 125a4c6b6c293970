#include "megalith/ops/gemm/product.h"

#include <ATen/ATen.h>

#include "megalith/base/error.h"
#include "megalith/ops/gemm/product_internal.h"
#include "megalith/ops/gemm/residual.h"

namespace megalith::ops {

namespace {

constexpr bool kCublasLt = MEGALITH_CUBLASLT != 0;

bool by_cublaslt(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const Addends& added, double beta,
                 double alpha, KernelChoice choice) {
  if constexpr (kCublasLt) return out.is_cuda() && product_by_cublaslt(out, a, b, added, beta, alpha, choice);
  return false;
}

}  // namespace

at::Tensor product(const at::Tensor& a, const at::Tensor& b, const Addends& added, KernelChoice choice) {
  if (kCublasLt && a.is_cuda() && a.size(0) * a.size(1) * b.size(1) >= kLeastTried) {
    const at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
    if (by_cublaslt(out, a, b, added, 0, 1, choice)) return out;
  }
  if (!added.bias.defined() && !added.residual.defined()) return a.mm(b);
  if (!added.residual.defined()) return at::addmm(added.bias, a, b);
  if (!added.bias.defined()) return at::addmm(added.residual, a, b);
  at::Tensor y = a.mm(b);
  add_bias_residual_(y, added.bias, added.residual);
  return y;
}

void product_out(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  if (by_cublaslt(out, a, b, {}, 0, 1, KernelChoice::kByTime)) return;
  at::Tensor into = out;
  at::mm_out(into, a, b);
}

void add_product(const at::Tensor& into, const at::Tensor& left, const at::Tensor& right, double beta, double alpha,
                 KernelChoice choice) {
  if (by_cublaslt(into, left, right, {}, beta, alpha, choice)) return;
  at::Tensor out = into;
  if (left.scalar_type() == into.scalar_type()) {
    at::addmm_out(out, out, left, right, beta, alpha);
  } else if (left.is_cuda() && into.scalar_type() == at::kFloat) {  // fp32 results of 16-bit products, in place
    if (beta != 0) {
      at::addmm_out(out, out, left, right, at::kFloat, beta, alpha);
    } else {
      at::mm_out(out, left, right, at::kFloat);
      if (alpha != 1) out.mul_(alpha);
    }
  } else if (beta == 0) {
    out.copy_(left.mm(right));
    if (alpha != 1) out.mul_(alpha);
  } else {
    if (beta != 1) out.mul_(beta);
    out.add_(left.mm(right), alpha);
  }
}

}  // namespace megalith::ops
