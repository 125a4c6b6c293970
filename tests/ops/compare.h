// Comparing an operation with its definition, outputs and gradients.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace megalith::testing {

using TensorList = std::vector<at::Tensor>;

// max|actual - expected| <= tolerance · max|expected|, and the same NaNs nowhere.
inline void expect_close(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                         const std::string& what = "") {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  if (!actual.defined()) return;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (actual.numel() == 0) return;
  const double size = expected.to(at::kDouble).abs().max().item<double>();
  const double error = (actual.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>();
  EXPECT_LE(error, tolerance * size) << what << ": largest value " << size;
}

using Operation = std::function<TensorList(const TensorList& inputs)>;

// The results of one forward and backward.
struct Evaluation {
  TensorList outputs;
  TensorList grads;  // gradients of the inputs, undefined for an input that has none
};

// Runs `operation` on copies of the inputs in `dtype` and goes back from Σ weight_i · output_i, with weights that are
// the same for the same shapes. `used` tells the outputs that take part; empty means all.
inline Evaluation evaluate(const Operation& operation, const TensorList& inputs, at::ScalarType dtype,
                           const std::vector<bool>& used = {}) {
  TensorList leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().to(dtype, false, true).requires_grad_());
  Evaluation result{operation(leaves), {}};
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (size_t i = 0; i < result.outputs.size(); ++i) {
    if (!used.empty() && !used[i]) continue;
    const at::Tensor& y = result.outputs[i];
    // Exact in every dtype, so that all of them get the same gradient.
    const at::Tensor weight = at::arange(y.numel(), at::kDouble).add(i).mul(7).remainder(11).sub(5).div(4);
    loss = loss + (y.to(at::kDouble) * weight.view(y.sizes())).sum();
  }
  loss.backward();
  for (const at::Tensor& leaf : leaves) result.grads.push_back(leaf.grad());
  return result;
}

// `ours` in `dtype` against `definition` in fp64, on inputs that are the same in both.
inline void expect_matches(const Operation& ours, const Operation& definition, const TensorList& inputs,
                           at::ScalarType dtype, double tolerance, const std::vector<bool>& used = {}) {
  TensorList rounded;
  for (const at::Tensor& input : inputs) rounded.push_back(input.to(dtype));
  const Evaluation actual = evaluate(ours, rounded, dtype, used);
  const Evaluation expected = evaluate(definition, rounded, at::kDouble, used);
  ASSERT_EQ(actual.outputs.size(), expected.outputs.size());
  for (size_t i = 0; i < actual.outputs.size(); ++i) {
    EXPECT_EQ(actual.outputs[i].scalar_type(), dtype);
    expect_close(actual.outputs[i], expected.outputs[i], tolerance, "output " + std::to_string(i));
  }
  for (size_t i = 0; i < inputs.size(); ++i)
    expect_close(actual.grads[i], expected.grads[i], tolerance, "gradient of input " + std::to_string(i));
}

// fp32: rounding of sums; bf16: an element is stored with 8 bits, and RMSNorm rounds twice.
inline double tolerance_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 2e-3 : 1.2e-2;
}
inline const std::vector<at::ScalarType>& all_dtypes() {
  static const std::vector<at::ScalarType> dtypes{at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};
  return dtypes;
}

// Normally distributed, the same for the same seed.
inline at::Tensor random_tensor(at::IntArrayRef sizes, uint64_t seed = 1) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator, at::kDouble);
}

// Another number of threads for libtorch while it lives.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) : before_(at::get_num_threads()) { at::set_num_threads(threads); }
  ~ThreadCount() { at::set_num_threads(before_); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
};

}  // namespace megalith::testing
