// Matrix products on arm64 as BLAS makes them, with nothing beside their result. There libtorch's own choice, oneDNN
// with Arm's library, takes memory of the size of the result for some shapes, which no plan knows of; and its loop for
// bf16 is some fifty times slower than its fp32 kernel where the processor has no instructions for bf16. So oneDNN is
// off, and bf16 goes by way of fp32, in memory that is not counted.
#include <ATen/ATen.h>
#include <ATen/CPUFunctions.h>
#include <torch/library.h>

#include <optional>
#include <vector>

namespace megalith::testing {

namespace {

using at::Scalar;
using at::Tensor;

#if defined(__aarch64__)
constexpr bool kReplaced = true;
#else
constexpr bool kReplaced = false;
#endif

class WideMatrix {
 public:
  explicit WideMatrix(at::IntArrayRef sizes)
      : memory_(static_cast<size_t>(c10::multiply_integers(sizes))),
        tensor_(at::from_blob(memory_.data(), sizes, at::kFloat)) {}
  explicit WideMatrix(const Tensor& x) : WideMatrix(x.sizes()) { tensor_.copy_(x); }
  Tensor& operator*() { return tensor_; }

 private:
  std::vector<float> memory_;
  Tensor tensor_;
};

// out = beta · added + alpha · a · b
Tensor& multiply(const Tensor& added, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha,
                 Tensor& out) {
  if (a.scalar_type() != at::kBFloat16) return at::cpu::addmm_out(out, added, a, b, beta, alpha);
  const at::AutoDispatchBelowADInplaceOrView guard;
  WideMatrix left(a), right(b), sum({a.size(0), b.size(1)});
  if (beta.toDouble() != 0) (*sum).copy_(added);  // a bias is broadcast
  at::cpu::addmm_out(*sum, *sum, *left, *right, beta, alpha);
  return out.copy_(*sum);
}

Tensor& multiply_in_place(Tensor& out, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  return multiply(out, a, b, beta, alpha, out);
}

Tensor multiplied(const Tensor& added, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  if (a.scalar_type() != at::kBFloat16) return at::cpu::addmm(added, a, b, beta, alpha);
  Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  return multiply(added, a, b, beta, alpha, out);
}

Tensor& product_into(const Tensor& a, const Tensor& b, Tensor& out) {
  return a.scalar_type() == at::kBFloat16 ? multiply(out, a, b, 0, 1, out) : at::cpu::mm_out(out, a, b);
}

Tensor product_of(const Tensor& a, const Tensor& b) {
  if (a.scalar_type() != at::kBFloat16) return at::cpu::mm(a, b);
  Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  return product_into(a, b, out);
}

const std::optional<torch::Library> replaced = [] {
  std::optional<torch::Library> library;
  if (!kReplaced) return library;
  at::globalContext().setUserEnabledMkldnn(false);
  library.emplace(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library->impl("mm", &product_of);
  library->impl("mm.out", &product_into);
  library->impl("addmm", &multiplied);
  library->impl("addmm.out", &multiply);
  library->impl("addmm_", &multiply_in_place);
  return library;
}();

}  // namespace

}  // namespace megalith::testing
