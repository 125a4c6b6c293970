// Products of matrices, as linear layers need them: [m, k] x [k, n], where either factor may be a transposed view.
//
// On CUDA large products of 16-bit numbers go to cuBLASLt, which has several kernels for each and a guess which is the
// fastest. They are tried when a shape first comes (some milliseconds each), and the fastest is used from then on: so
// the last bits may differ from run to run. What was found out is kept in the caller's ProductPlans. With
// at::globalContext().deterministicAlgorithms() (full_determinism) the guess stands. Everything else is ATen's.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace megalith::ops {

// What is added before the result is rounded; each may be undefined.
struct Addends {
  at::Tensor bias{};      // [n]
  at::Tensor residual{};  // [m, n]
};

// How cuBLASLt's kernel for a product is chosen.
//
// Kernels differ in the last bits, and each process measures for itself: two ranks may choose two kernels. That is of
// no matter where ranks compute different things, or where their results are summed over the group that has to agree.
// But tensor-parallel ranks that hold the same weight and each compute its whole gradient would drift apart, step by
// step and without a sign of it. Their products take the library's first offer, which depends on shape, GPU and library
// alone. (Agreeing on the measured choice would take a collective in the middle of the first forward and backward
// passes, for the few products that are concerned.)
enum class KernelChoice {
  kByTime,  // the fastest in a trial
  kFixed    // the same on every rank
};

// The kernels of one owner's products: what was offered, and what was the fastest. An owner (nn::ParameterSet) has one
// for its device, and gives it to each product.
class ProductPlans {
 public:
  virtual ~ProductPlans() = default;

  // out = beta · out + alpha · (a · b) + bias + residual; residual only with beta 0. False: it is not a product for
  // cuBLASLt, or too small to be worth it, and nothing was done.
  virtual bool run(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const Addends& added, double beta,
                   double alpha, KernelChoice choice) = 0;
};
// nullptr in a build without cuBLASLt.
std::unique_ptr<ProductPlans> make_product_plans();

// Which kernel computes a product.
struct ProductKernels {
  KernelChoice choice = KernelChoice::kByTime;
  ProductPlans* plans = nullptr;  // outlives the call; nullptr: ATen's kernel
};

// a · b + bias + residual, in the type of a.
at::Tensor product(const at::Tensor& a, const at::Tensor& b, const Addends& added = {},
                   const ProductKernels& kernels = {});
// The same without addends into out [m, n], which may be a part of a larger tensor.
void product_out(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const ProductKernels& kernels = {});

// into = beta · into + alpha · (left · right). With beta 0 nothing of `into` is read. 16-bit factors may go into fp32:
// on CUDA the product never exists in 16 bits, on the CPU it is rounded first.
void add_product(const at::Tensor& into, const at::Tensor& left, const at::Tensor& right, double beta, double alpha = 1,
                 const ProductKernels& kernels = {});

// y += bias + residual in one pass over y: y, residual [t, h], contiguous and of one dtype; bias [h] of any. Without
// autograd: for use inside of functions with a backward of their own.
void add_bias_residual_(const at::Tensor& y, const at::Tensor& bias, const at::Tensor& residual);

}  // namespace megalith::ops
