#include "tests/ops/cuda/kernel_case.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace megalith::ops {

using at::Tensor;

void CudaKernel::SetUp() {
  if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no GPU";
}

void CudaKernel::expect_same(const Tensor& cuda, const Tensor& cpu, const std::string& what) {
  ASSERT_EQ(cuda.defined(), cpu.defined()) << what;
  if (!cpu.defined() || cpu.numel() == 0) return;
  const double tolerance = cpu.scalar_type() == at::kFloat ? 1e-5 : 1.6e-2;
  const Tensor a = cuda.cpu().to(at::kDouble), b = cpu.to(at::kDouble);
  const double difference = (a - b).abs().max().item<double>(), scale = b.abs().max().item<double>();
  EXPECT_LE(difference, tolerance * std::max(scale, 1e-3)) << what;
}

void CudaKernel::compare(const Tensors& inputs, const Operation& operation, const std::string& what) {
  const auto run = [&](at::Device device, uint64_t seed) {
    Tensors leaves, results;
    for (const Tensor& input : inputs) {
      Tensor leaf = input.to(device).detach().clone();
      if (leaf.is_floating_point()) leaf.set_requires_grad(true);
      leaves.push_back(leaf);
    }
    // The weights are drawn on the CPU, so that both devices get the same ones.
    at::Generator generator = at::detail::createCPUGenerator(seed);
    Tensor sum = at::zeros({}, at::TensorOptions(device).dtype(at::kDouble));
    for (const Tensor& out : operation(leaves)) {
      results.push_back(out.detach().clone());
      const Tensor weight = at::randn(out.sizes(), generator, at::kFloat).to(device);
      if (out.requires_grad()) sum = sum + (out.to(at::kFloat) * weight).sum().to(at::kDouble);
    }
    sum.backward();
    for (const Tensor& leaf : leaves) results.push_back(leaf.is_floating_point() ? leaf.grad() : Tensor());
    return results;
  };
  const Tensors cpu = run(at::kCPU, 3), cuda = run(at::kCUDA, 3);
  ASSERT_EQ(cpu.size(), cuda.size());
  for (size_t i = 0; i < cpu.size(); ++i) expect_same(cuda[i], cpu[i], what + ", result " + std::to_string(i));
}

void CudaKernel::expect_room_beside(const std::function<void()>& product) {
  const Tensor counter = at::zeros({1}, at::TensorOptions(at::kCUDA));
  const c10::impl::VirtualGuardImpl device(c10::kCUDA);
  const c10::Stream current = device.getStream(counter.device()),
                    beside = device.getStreamFromGlobalPool(counter.device(), true);
  product();        // chooses the kernel
  counter.add_(1);  // loads the other one, which may wait for the device
  device.synchronizeStream(current);
  c10::Event end(c10::kCUDA), other(c10::kCUDA);
  product();
  end.record(current);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));  // by now it runs
  {
    const c10::StreamGuard guard(beside);
    counter.add_(1);
    other.record(beside);
  }
  other.synchronize();
  EXPECT_FALSE(end.query()) << "the kernel waited for the end of the product";
}

// In this file alone: an instance covers the tests of every file.
INSTANTIATE_TEST_SUITE_P(Dtypes, CudaKernel, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& test) { return std::string(test.param == at::kFloat ? "fp32" : "bf16"); });

}  // namespace megalith::ops
