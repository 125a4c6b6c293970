#include "megalith/ops/gemm/gemm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "tests/ops/compare.h"
#include "tests/support/expect.h"

namespace megalith::ops {
namespace {

TEST(AddBiasResidual, AddsBothToEveryRow) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    const at::Tensor y = testing::random_tensor({300, 130}).to(dtype), before = y.clone();
    const at::Tensor bias = testing::random_tensor({130}).to(dtype),
                     residual = testing::random_tensor({300, 130}).to(dtype);
    add_bias_residual_(y, bias, residual);
    const at::Tensor exact = before.to(at::kDouble) + bias.to(at::kDouble) + residual.to(at::kDouble);
    testing::expect_close(y, exact, testing::tolerance_of(dtype));
  }
}

TEST(AddBiasResidual, NamesWhatDoesNotFit) {
  try {
    add_bias_residual_(at::zeros({3, 4}), at::zeros({5}), at::zeros({3, 4}));
    FAIL();
  } catch (const InternalError& error) {
    testing::expect_contains(error.what(), "a bias of [5]");
  }
}

}  // namespace
}  // namespace megalith::ops
