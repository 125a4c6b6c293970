// Vector functions against the standard library in double precision, by units in the last place, and the same bits from
// every instruction set of this machine.
#include "megalith/ops/kernel/cpu_math.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "megalith/ops/kernel/cpu_parallel.h"
#include "tests/ops/compare.h"

namespace megalith::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

template <typename Function>
struct Apply {
  MEGALITH_ALWAYS_INLINE static void run(const float* x, float* y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = Function::of(x[i]);
  }
};
struct Exp {
  MEGALITH_ALWAYS_INLINE static float of(float x) { return exp_fast(x); }
  static double exact(double x) { return std::exp(x); }
};
struct Erf {
  MEGALITH_ALWAYS_INLINE static float of(float x) { return erf_fast(x); }
  static double exact(double x) { return std::erf(x); }
};
struct Sigmoid {
  MEGALITH_ALWAYS_INLINE static float of(float x) { return sigmoid_fast(x); }
  static double exact(double x) { return 1 / (1 + std::exp(-x)); }
};

// Distance in units of the last place of the exact value.
double ulps(float actual, double exact) {
  if (std::isinf(static_cast<float>(exact)) || std::isnan(exact))
    return std::isnan(exact) ? !std::isnan(actual) : actual != static_cast<float>(exact);
  const auto rounded = static_cast<float>(std::abs(exact));
  const double unit = static_cast<double>(std::nextafter(rounded, kInf)) - rounded;
  return std::abs(actual - exact) / unit;
}

// The largest error over `points` values from low to high, of the scalar form and of the kernel for this machine.
template <typename Function>
double worst(float low, float high, int points = 200001) {
  std::vector<float> x(points);
  std::vector<float> y(points);
  for (int i = 0; i < points; ++i) x[i] = low + (high - low) * static_cast<float>(i) / static_cast<float>(points - 1);
  run_kernel<Apply<Function>>(x.data(), y.data(), static_cast<int64_t>(points));
  double error = 0;
  for (int i = 0; i < points; ++i) {
    const double exact = Function::exact(x[i]);
    error = std::max({error, ulps(y[i], exact), ulps(Function::of(x[i]), exact)});
  }
  return error;
}

TEST(CpuMath, ExpIsWithinTwoUlps) {
  EXPECT_LE(worst<Exp>(-86.98F, 88.72F), 2);
  EXPECT_LE(worst<Exp>(-1, 1), 2);
  EXPECT_LE(worst<Exp>(88, 88.722F), 2);
}

TEST(CpuMath, ExpAtTheEnds) {
  EXPECT_EQ(exp_fast(0.0F), 1.0F);
  EXPECT_EQ(exp_fast(-kInf), 0.0F);
  EXPECT_EQ(exp_fast(-1000.0F), 0.0F);
  EXPECT_EQ(exp_fast(-87.01F), 0.0F);
  EXPECT_EQ(exp_fast(kInf), kInf);
  EXPECT_EQ(exp_fast(88.73F), kInf);
  EXPECT_TRUE(std::isnan(exp_fast(std::numeric_limits<float>::quiet_NaN())));
}

TEST(CpuMath, ErfAndSigmoid) {
  EXPECT_LE(worst<Erf>(-6, 6), 8);
  EXPECT_LE(worst<Sigmoid>(-86, 86), 4);
  EXPECT_FLOAT_EQ(erf_fast(kInf), 1.0F);
  EXPECT_FLOAT_EQ(erf_fast(-kInf), -1.0F);
  EXPECT_EQ(sigmoid_fast(-kInf), 0.0F);
  EXPECT_EQ(sigmoid_fast(kInf), 1.0F);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(erf_fast(nan)) && std::isnan(sigmoid_fast(nan)));
}

TEST(CpuMath, BfloatGoesToFloatAndBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const c10::BFloat16 x(static_cast<uint16_t>(bits), c10::BFloat16::from_bits());
    const float wide = to_acc(x);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(x)));
      EXPECT_TRUE(std::isnan(to_acc(to_bfloat16(wide))));
    } else {
      ASSERT_EQ(wide, static_cast<float>(x));
      ASSERT_EQ(to_bfloat16(wide).x, x.x);
    }
  }
}

TEST(CpuMath, FloatRoundsToTheNearestBfloat) {
  uint32_t state = 1;
  for (int i = 0; i < 200000; ++i) {
    state = state * 1664525U + 1013904223U;
    // Every other one with a low half around the tie.
    const uint32_t bits = i % 2 == 0 ? state : (state & 0xffff0000U) | (0x7fffU + (state & 3U));
    const auto x = std::bit_cast<float>(bits);
    if (std::isnan(x)) continue;
    ASSERT_EQ(to_bfloat16(x).x, c10::BFloat16(x).x) << x;
  }
}

#if defined(__x86_64__)
TEST(CpuMath, EveryInstructionSetGivesTheSame) {
  std::vector<float> x(1001);
  std::iota(x.begin(), x.end(), -500.0F);
  for (float& v : x) v *= 0.17F;
  std::vector<float> base(x.size());
  std::vector<float> other(x.size());
  const auto n = static_cast<int64_t>(x.size());
  Apply<Exp>::run(x.data(), base.data(), n);
  if (cpu_level() != CpuLevel::kBase) {
    run_kernel_avx2<Apply<Exp>>(x.data(), other.data(), n);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(other[i], base[i], 3e-7 * base[i]);
  }
  if (cpu_level() == CpuLevel::kAvx512) {
    run_kernel_avx512<Apply<Exp>>(x.data(), other.data(), n);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(other[i], base[i], 3e-7 * base[i]);
  }
}
#endif

TEST(CpuParallel, EachItemOnce) {
  const testing::ThreadCount threads(3);
  for (const int64_t n : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> seen(n);
    parallel_for(n, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++seen[i];
    });
    for (const auto& count : seen) EXPECT_EQ(count, 1);
  }
}

TEST(CpuParallel, PartsAreCutByThreadsAndGrain) {
  const testing::ThreadCount threads(4);
  EXPECT_EQ(parallel_parts(0, 1), 0);
  EXPECT_EQ(parallel_parts(100, 100), 1);
  EXPECT_EQ(parallel_parts(100, 50), 2);
  EXPECT_EQ(parallel_parts(100, 1), 4);
  EXPECT_EQ(parallel_parts(5, 1), 3);  // 2, 2, 1: a fourth part would be empty
  std::vector<int64_t> begins(3, -1);
  parallel_for_parts(5, 3, [&](int64_t part, int64_t begin, int64_t /*end*/) { begins[part] = begin; });
  EXPECT_EQ(begins, (std::vector<int64_t>{0, 2, 4}));
}

TEST(CpuParallel, NestedWorkStaysInItsThread) {
  const testing::ThreadCount threads(2);
  std::atomic<int> parts = 0;
  parallel_for(2, 1, [&](int64_t /*begin*/, int64_t /*end*/) { parts += static_cast<int>(parallel_parts(100, 1)); });
  EXPECT_EQ(parts, 2);
}

TEST(CpuParallel, AnErrorIsPassedOn) {
  const testing::ThreadCount threads(2);
  const auto fail = [](int64_t begin, int64_t /*end*/) {
    if (begin > 0) throw std::runtime_error("second part");
  };
  EXPECT_THROW(parallel_for(10, 1, fail), std::runtime_error);
}

}  // namespace
}  // namespace megalith::ops
