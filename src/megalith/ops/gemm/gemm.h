// Matrix products for linear layers: [m, k] x [k, n], where either factor may be a transposed view.
//
// On CUDA large products of 16-bit numbers go to cuBLASLt, which offers several kernels for each shape and a guess
// which is the fastest. The first call with a shape times them (as long as some forty calls), and the fastest is used
// from then on, also for sizes like these, so that the last bits may differ from run to run. The choice is kept in the
// caller's GemmPlans. With at::globalContext().deterministicAlgorithms() (full_determinism) the guess stands.
// Everything else goes to ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>

namespace megalith::ops {

// Terms that are added before the result is rounded; each may be undefined.
struct Addends {
  at::Tensor bias{};      // [n]
  at::Tensor residual{};  // [m, n]
};

// How cuBLASLt's kernel for a product is chosen.
//
// Kernels differ in the last bits, and each process measures for itself, so that two ranks may choose different
// kernels. That does not matter where ranks compute different things, or where their results are summed over the group
// that has to agree. But tensor-parallel ranks that hold the same weight and each compute its whole gradient would
// drift apart, step by step and unnoticed. Their products take the library's first offer, which depends only on shape,
// GPU and library. (Agreeing on the measured choice would take a collective in the middle of the first forward and
// backward passes, for the few products concerned.)
enum class KernelChoice {
  kByTime,  // the fastest when measured
  kFixed    // the same on every rank
};

// The kernels offered and chosen for the products of one owner. An owner (nn::ParameterSet) has one for its device and
// passes it to each product. Thread-safe.
class GemmPlans {
 public:
  virtual ~GemmPlans() = default;

  // Computes out = beta · out + alpha · (a · b) + bias + residual; a residual needs beta = 0. Returns false, having
  // done nothing, if the product is not for cuBLASLt or too small to be worth it.
  virtual bool run(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const Addends& added, double beta,
                   double alpha, KernelChoice choice) = 0;

  // The same for a · b in fp8 with one inverse scale each (fp8.h): out = beta · out + a · b, where b [k, n] is the
  // transpose of a matrix that is contiguous along k. `fast` allows sums of less precision.
  virtual bool run_fp8(const at::Tensor& /*out*/, const at::Tensor& /*a*/, const at::Tensor& /*a_inverse_scale*/,
                       const at::Tensor& /*b*/, const at::Tensor& /*b_inverse_scale*/, double /*beta*/, bool /*fast*/,
                       KernelChoice /*choice*/) {
    return false;
  }

  // How many shapes have a plan, and for how many kernels were measured.
  struct Counts {
    int64_t kept = 0, trials = 0;
  };
  virtual Counts counts() const { return {}; }

  // Returns how many multiprocessors products leave free now (SparedMultiprocessors).
  int spared() const { return spared_; }

 private:
  friend class SparedMultiprocessors;
  std::atomic<int> spared_ = 0;
};

// While it lives, products of these plans leave multiprocessors free for kernels that run beside them, as those of
// collectives. The fastest kernels for large products hold every multiprocessor from their beginning to their end: what
// is launched meanwhile would wait for that end, even on a stream of high priority. Products that do not go to cuBLASLt
// take what they get.
class SparedMultiprocessors {
 public:
  // `plans` may be nullptr; it outlives this object.
  SparedMultiprocessors(GemmPlans* plans, int count)
      : plans_(plans), before_(plans != nullptr ? plans->spared_.exchange(count) : 0) {}
  ~SparedMultiprocessors() {
    if (plans_ != nullptr) plans_->spared_ = before_;
  }
  SparedMultiprocessors(const SparedMultiprocessors&) = delete;
  SparedMultiprocessors& operator=(const SparedMultiprocessors&) = delete;

 private:
  GemmPlans* plans_;
  int before_;
};
// Returns nullptr in a build without cuBLASLt.
std::unique_ptr<GemmPlans> make_gemm_plans();

// How the kernel of a product is chosen, and where the choice is kept.
struct GemmKernels {
  KernelChoice choice = KernelChoice::kByTime;
  GemmPlans* plans = nullptr;  // must outlive the call; nullptr means ATen's kernel
};

// Returns a · b + bias + residual in the type of a.
at::Tensor gemm(const at::Tensor& a, const at::Tensor& b, const Addends& added = {}, const GemmKernels& kernels = {});
// Writes a · b into out [m, n], which may be a part of a larger tensor.
void gemm_out(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const GemmKernels& kernels = {});

// Computes into = beta · into + alpha · (left · right). With beta = 0 `into` is not read. The result of 16-bit factors
// may be fp32: on CUDA the product never exists in 16 bits, on the CPU it is rounded first.
void add_gemm(const at::Tensor& into, const at::Tensor& left, const at::Tensor& right, double beta, double alpha = 1,
              const GemmKernels& kernels = {});

// Adds bias and residual to y in one pass: y and residual are [t, h], contiguous and of one dtype; bias is [h] of any
// dtype. Without autograd: for use inside functions with their own backward.
void add_bias_residual_(const at::Tensor& y, const at::Tensor& bias, const at::Tensor& residual);

}  // namespace megalith::ops
