// Sends products to the owner's plans (cuBLASLt) where those take them, otherwise to ATen. What a plan adds in the
// product itself (bias, residual) takes a pass of its own after ATen's product if there are both.
#include "megalith/ops/gemm/gemm.h"

#include <ATen/ATen.h>

#include "megalith/base/error.h"
#include "megalith/ops/gemm/gemm_internal.h"
#include "megalith/ops/kernel/tensor_internal.h"

namespace megalith::ops {

namespace {

constexpr bool kCublasLt = MEGALITH_CUBLASLT != 0;

// Returns whether a plan computed out = beta · out + alpha · a b + added; if not, nothing was written.
bool run_planned(const GemmKernels& kernels, const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                 const Addends& added, double beta, double alpha) {
  return kernels.plans != nullptr && kernels.plans->run(out, a, b, added, beta, alpha, kernels.choice);
}

}  // namespace

std::unique_ptr<GemmPlans> make_gemm_plans() {
  if constexpr (kCublasLt) return make_cublaslt_plans();
  return nullptr;
}

at::Tensor gemm(const at::Tensor& a, const at::Tensor& b, const Addends& added, const GemmKernels& kernels) {
  if (kernels.plans != nullptr && a.size(0) * a.size(1) * b.size(1) >= kLeastTried) {
    // Below this size no plan would take it: do not allocate the result in vain.
    const at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
    if (run_planned(kernels, out, a, b, added, 0, 1)) return out;
  }
  // ATen's addmm adds one matrix or one broadcast row in the product itself.
  if (!added.bias.defined() && !added.residual.defined()) return a.mm(b);
  if (!added.residual.defined()) return at::addmm(added.bias, a, b);
  if (!added.bias.defined()) return at::addmm(added.residual, a, b);
  at::Tensor y = a.mm(b);
  add_bias_residual_(y, added.bias, added.residual);
  return y;
}

void gemm_out(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const GemmKernels& kernels) {
  if (run_planned(kernels, out, a, b, {}, 0, 1)) return;
  at::Tensor into = out;
  at::mm_out(into, a, b);
}

void add_gemm(const at::Tensor& into, const at::Tensor& left, const at::Tensor& right, double beta, double alpha,
              const GemmKernels& kernels) {
  if (run_planned(kernels, into, left, right, {}, beta, alpha)) return;
  // In order of quality: one type throughout; 16-bit factors with an fp32 sum; a product rounded to 16 bits. beta = 0
  // is apart each time, since 0 · NaN of uninitialized memory would be NaN.
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
  } else if (beta == 0) {  // on the CPU: the product is rounded to 16 bits, then widened
    out.copy_(left.mm(right));
    if (alpha != 1) out.mul_(alpha);
  } else {
    if (beta != 1) out.mul_(beta);
    out.add_(left.mm(right), alpha);
  }
}

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
