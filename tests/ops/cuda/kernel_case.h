// The fixture of the tests in this folder. Each compares a CUDA kernel with its CPU twin, values and all gradients, in
// fp32 and bf16; the CPU's are compared with their definitions by the tests one folder up. Without a GPU they are
// skipped. All files share one suite, so `ops_test --gtest_filter='*CudaKernel*'` runs every kernel.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace megalith::ops {

class CudaKernel : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  using Tensors = std::vector<at::Tensor>;
  using Operation = std::function<Tensors(const Tensors& inputs)>;

  void SetUp() override;

  // Returns normally distributed numbers on the CPU, in the test's dtype.
  at::Tensor random(at::IntArrayRef sizes) { return (at::randn(sizes, generator_, at::kFloat) * 0.7).to(GetParam()); }

  // Expects max|cuda - cpu| <= tolerance · max|cpu|, with the tolerance of the CPU tensor's dtype: rounding of sums in
  // fp32, two roundings to 8 bits in bf16.
  static void expect_same(const at::Tensor& cuda, const at::Tensor& cpu, const std::string& what);

  // Runs `operation` and the backward of a weighted sum of its outputs on both devices, and expects the same outputs
  // and the same gradients of all floating-point inputs.
  static void compare(const Tensors& inputs, const Operation& operation, const std::string& what);

  // Expects that a kernel which is launched while `product` runs, as a collective is, ends before it. The product takes
  // several milliseconds.
  static void expect_room_beside(const std::function<void()>& product);

  at::Generator generator_ = at::detail::createCPUGenerator(7);
};

}  // namespace megalith::ops
