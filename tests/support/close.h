// The project's meaning of "equal up to rounding": max|a-b| <= tolerance · max|b| for each tensor.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

namespace megalith::testing {

// For fp32. Sums in another order differ by less; a wrong term by far more.
inline constexpr double kClose = 1e-5;

// `noise`: an absolute difference that is allowed where it is larger. NaN is close to nothing.
inline void expect_close(const at::Tensor& actual, const at::Tensor& expected, const std::string& what,
                         double tolerance = kClose, double noise = 0) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what << (actual.defined() ? " is there" : " is not there");
  if (!actual.defined()) return;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (actual.numel() == 0) return;
  const at::Tensor a = actual.detach().to(at::kDouble), b = expected.detach().to(at::kDouble);
  const double size = b.abs().max().item<double>(), error = (a - b).abs().max().item<double>();
  EXPECT_LE(error, std::max(tolerance * size, noise)) << what << ": the largest value is " << size;
}

inline void expect_close(double actual, double expected, const std::string& what, double tolerance = kClose,
                         double noise = 0) {
  EXPECT_LE(std::abs(actual - expected), std::max(tolerance * std::abs(expected), noise))
      << what << ": " << actual << ", expected " << expected;
}

// The same bits (NaNs too).
inline void expect_identical(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what << (actual.defined() ? " is there" : " is not there");
  if (!actual.defined()) return;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
  const at::Tensor a = actual.detach().contiguous(), b = expected.detach().contiguous();
  EXPECT_EQ(std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()), 0)
      << what << ": largest difference " << (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

}  // namespace megalith::testing
