#include "megalith/peft/frozen_rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <optional>

#include "tests/support/close.h"

namespace megalith::testing {
namespace {

nn::Parameter& bias_of_six(nn::ParameterSet& set) {
  nn::Parameter& bias = nn::ParameterScope(set).add({.name = "qkv.bias"}, {6});
  bias.value.detach().fill_(1);
  return bias;
}

void run_backward(const nn::Parameter& bias) { (bias.value * at::arange(1, 7, at::kFloat)).sum().backward(); }

TEST(FrozenRows, HaveNoGradient) {
  nn::ParameterSet set(at::kFloat, at::kCPU);
  nn::Parameter& bias = bias_of_six(set);
  std::optional<peft::FrozenRows> frozen(std::in_place, bias, std::vector<peft::FrozenRows::Range>{{2, 2}, {5, 1}});
  for (int i = 1; i <= 2; ++i) {  // gradients of several micro-batches are added
    run_backward(bias);
    expect_close(bias.value.grad(), at::tensor({1, 2, 0, 0, 5, 0}, at::kFloat) * i, "the gradient");
  }
  frozen.reset();
  run_backward(bias);
  expect_close(bias.value.grad(), at::tensor({3, 6, 3, 4, 15, 6}, at::kFloat), "without it");
}

// Layers write the gradient into an attached buffer themselves.
TEST(FrozenRows, AreZeroInAnAttachedBuffer) {
  nn::ParameterSet set(at::kFloat, at::kCPU);
  nn::Parameter& bias = bias_of_six(set);
  const peft::FrozenRows frozen(bias, {{0, 4}});
  bias.grad.main_grad = at::full({6}, 7, at::kFloat);
  run_backward(bias);
  expect_close(bias.grad.main_grad, at::tensor({0, 0, 0, 0, 7, 7}, at::kFloat), "the buffer");
}

}  // namespace
}  // namespace megalith::testing
