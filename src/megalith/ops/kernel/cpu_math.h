// Shared by the CPU kernels of this module: compiling one kernel for several instruction sets, reading and writing
// every floating dtype, and elementary functions that the compiler can vectorize.
//
// A kernel is plain C++ over raw pointers in a file x_cpu.cc, without ATen's headers, compiled with flags that let
// loops vectorize and keep infinities and NaN (kernel_sources in CMakeLists.txt). A sum whose order does not matter
// says so with `#pragma omp simd reduction(+ : sum)`. A kernel looks like this:
//
//   template <typename T>
//   struct ScaleRows {
//     MEGALITH_ALWAYS_INLINE static void run(T* x, acc_t<T> factor, int64_t n) {
//       for (int64_t i = 0; i < n; ++i) x[i] = from_acc<T>(to_acc(x[i]) * factor);
//     }
//   };
//   parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
//     run_kernel<ScaleRows<T>>(x + begin * h, factor, (end - begin) * h);
//   });
//
// Everything that run() calls must be inlined (by MEGALITH_ALWAYS_INLINE, or because the compiler chooses to): any
// other function stays compiled for the oldest machine. That includes lambdas: call run_kernel inside a lambda, never a
// lambda inside a kernel.
//
// Threads: cpu_parallel.h (at::parallel_for runs serially in code that is compiled without OpenMP, as ours is).
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "megalith/base/error.h"

#define MEGALITH_ALWAYS_INLINE inline __attribute__((always_inline))
#define MEGALITH_RESTRICT __restrict__

namespace megalith::ops {

// ---- Instruction sets ----------------------------------------------------------------------------------------------

#if defined(__x86_64__)
// The target strings name exactly what is checked at run time. Not target_clones: Clang has none for templates, and the
// ifuncs behind it run before the sanitizers are ready.
#define MEGALITH_TARGET_AVX2 __attribute__((target("avx2,fma,bmi,bmi2")))
#define MEGALITH_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi,bmi2")))

// The instruction sets that kernels are compiled for; kBase is that of the whole build.
enum class CpuLevel {
  kBase,   // SSE2 on x86_64
  kAvx2,   // with FMA: vectors of 8 floats
  kAvx512  // vectors of 16 floats
};

// Returns the newest of them that this machine has.
inline CpuLevel cpu_level() {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                    __builtin_cpu_supports("bmi2");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  return avx2 ? (avx512 ? CpuLevel::kAvx512 : CpuLevel::kAvx2) : CpuLevel::kBase;
}

// Kernel::run compiled for one instruction set: always_inline brings its body into a function with that target. Calling
// one on a machine without the instructions ends the program; run_kernel() chooses.
template <typename Kernel, typename... Args>
MEGALITH_TARGET_AVX512 auto run_kernel_avx512(Args... args) {
  return Kernel::run(args...);
}
template <typename Kernel, typename... Args>
MEGALITH_TARGET_AVX2 auto run_kernel_avx2(Args... args) {
  return Kernel::run(args...);
}
#endif

// Calls Kernel::run(args…) compiled for the newest instruction set of this machine. Arguments are passed by value.
template <typename Kernel, typename... Args>
auto run_kernel(Args... args) {
#if defined(__x86_64__)
  switch (cpu_level()) {
    case CpuLevel::kAvx512:
      return run_kernel_avx512<Kernel>(args...);
    case CpuLevel::kAvx2:
      return run_kernel_avx2<Kernel>(args...);
    case CpuLevel::kBase:
      break;
  }
#endif
  return Kernel::run(args...);
}

// ---- Dtypes --------------------------------------------------------------------------------------------------------

// The type that a kernel computes in: fp64 for fp64, fp32 for everything else.
template <typename T>
// NOLINTNEXTLINE(readability-identifier-naming): named like ATen's opmath_t, which it stands for.
using acc_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

// to_acc() widens an element to the type of computation, from_acc() rounds it back. Both are exact where they can be
// and branch-free: a bf16 is the upper half of a float, so that widening it is a shift.
MEGALITH_ALWAYS_INLINE float to_acc(float x) { return x; }
MEGALITH_ALWAYS_INLINE double to_acc(double x) { return x; }
MEGALITH_ALWAYS_INLINE float to_acc(c10::Half x) { return static_cast<float>(x); }
MEGALITH_ALWAYS_INLINE float to_acc(c10::BFloat16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.x) << 16); }

// Rounds fp32 to bf16, to the nearest, ties to even: adding 0x7fff, and one more if the last kept bit is odd, carries
// into the upper half exactly when it has to be rounded up. NaN stays NaN, without its payload.
MEGALITH_ALWAYS_INLINE c10::BFloat16 to_bfloat16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const uint32_t result = (bits & 0x7fffffffU) > 0x7f800000U ? 0x7fc0U : rounded;
  return {static_cast<uint16_t>(result), c10::BFloat16::from_bits()};
}

// Rounds a result to T, to the nearest, ties to even.
template <typename T>
MEGALITH_ALWAYS_INLINE T from_acc(acc_t<T> x) {
  if constexpr (std::is_same_v<T, c10::BFloat16>)
    return to_bfloat16(x);
  else
    return static_cast<T>(x);
}

// Calls f.template operator()<T>() with the C++ type of `dtype`:
//   visit_floating(dtype, [&]<typename T>() { … });
template <typename F>
void visit_floating(c10::ScalarType dtype, F&& f) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return f.template operator()<float>();
    case c10::ScalarType::BFloat16:
      return f.template operator()<c10::BFloat16>();
    case c10::ScalarType::Half:
      return f.template operator()<c10::Half>();
    case c10::ScalarType::Double:
      return f.template operator()<double>();
    default:
      check(false, "a kernel got a tensor of dtype {}; it takes Float, BFloat16, Half and Double",
            c10::toString(dtype));
  }
}

// ---- Elementary functions ------------------------------------------------------------------------------------------
// The fp32 forms have no branches and no calls, so that loops over them vectorize; the fp64 forms are those of the
// library. Infinities and NaN behave as in <cmath>.

// e^x, at most 2 ulp off; results below 2^-125.5 are 0. After Cephes' expf.
MEGALITH_ALWAYS_INLINE float exp_fast(float x) {
  // Beyond these e^x is infinite or 0. Written so that NaN passes.
  x = x > 88.73F ? 88.73F : x;
  x = x < -87.34F ? -87.34F : x;
  // n = round(x / ln 2), from -126 to 128: adding 1.5·2^23 leaves it in the low bits.
  const float shifted = x * 1.44269504088896341F + 12582912.0F;
  const float n = shifted - 12582912.0F;
  // ln 2 in two parts, the first short enough for an exact product.
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  const float y = p * (r * r) + r + 1.0F;
  // 2^n as 2 · 2^(n-1), since 2^128 is infinite: n - 1 goes into the exponent (bias 127), higher bits are shifted out.
  const auto scale = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) << 23) + (126U << 23));
  return (y + y) * scale;
}
MEGALITH_ALWAYS_INLINE double exp_fast(double x) { return std::exp(x); }

// 1 / (1 + e^-x). exp_fast(-x) is infinite for x < -88.7, where the result is 0 as it should be.
template <typename T>
MEGALITH_ALWAYS_INLINE T sigmoid_fast(T x) {
  return T(1) / (T(1) + exp_fast(-x));
}

// erf(x): a rational minimax approximation on [-4, 4] (that of Eigen), ±1 outside. 1 - erf(4) is 1.5e-8, less than half
// a unit in the last place of 1.
MEGALITH_ALWAYS_INLINE float erf_fast(float x) {
  x = x > 4.0F ? 4.0F : x;
  x = x < -4.0F ? -4.0F : x;
  const float z = x * x;
  float p = -2.72614225801306e-10F;
  p = p * z + 2.77068142495902e-08F;
  p = p * z - 2.10102402082508e-06F;
  p = p * z - 5.69250639462346e-05F;
  p = p * z - 7.34990630326855e-04F;
  p = p * z - 2.95459980854025e-03F;
  p = p * z - 1.60960333262415e-02F;
  float q = -1.45660718464996e-05F;
  q = q * z - 2.13374055278905e-04F;
  q = q * z - 1.68282697438203e-03F;
  q = q * z - 7.37332916720468e-03F;
  q = q * z - 1.42647390514189e-02F;
  return x * p / q;
}
MEGALITH_ALWAYS_INLINE double erf_fast(double x) { return std::erf(x); }

}  // namespace megalith::ops
