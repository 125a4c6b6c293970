// Dropout draws from the generator of the device, so it has no CPU twin with the same mask: its properties are checked.
#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "megalith/ops/norm_rope/dropout.h"
#include "tests/ops/cuda/kernel_case.h"

namespace megalith::ops {
namespace {

using at::Tensor;

// The generator's state decides, gradients pass where the input did, and the shares are right.
TEST_P(CudaKernel, DropoutFollowsTheGenerator) {
  at::Generator generator = at::detail::getCUDAHooks().getDefaultGenerator(0);
  const Tensor state = generator.get_state();
  for (const int64_t n : {5, 64, 1000, 100003}) {
    const Tensor x = at::ones({n}, at::TensorOptions(at::kCUDA).dtype(GetParam())).requires_grad_();
    const Tensor r = random({n}).to(at::kCUDA).requires_grad_(), weight = random({n}).to(at::kCUDA);
    generator.set_state(state);
    const Tensor y = dropout(x, 0.3, generator), other = dropout(x, 0.3, generator);
    generator.set_state(state);
    const Tensor sum = dropout_add(x, r, 0.3, generator);
    EXPECT_TRUE(sum.equal(r + y));
    const Tensor kept = y.detach().ne(0).to(at::kFloat);
    if (n > 100) {
      EXPECT_FALSE(y.equal(other));
    }
    EXPECT_NEAR(kept.mean().item<double>(), 0.7, 5 * std::sqrt(0.21 / static_cast<double>(n)));
    (sum * weight).sum().backward();
    expect_same(x.grad(), (y.detach() * weight).cpu(), fmt::format("gradient of {}", n));
    EXPECT_TRUE(r.grad().equal(weight));
  }
}

}  // namespace
}  // namespace megalith::ops
