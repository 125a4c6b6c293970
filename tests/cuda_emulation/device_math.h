// CUDA's mathematical functions with CUDA's errors: computed exactly, then moved by as many units in the last place as
// the CUDA programming guide allows them, up or down by the bits of the argument. With CUDA's own functions a kernel is
// closer to its CPU twin than with these.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace megalith::cuda_emulation {

// x, `units` of its last place away from zero or towards it; `by` decides which. Zeros, infinities and NaN stay.
template <typename T, typename Bits>
T moved(T x, int units, Bits by) {
  if (!std::isnormal(x)) return x;
  by ^= by >> (4 * sizeof(Bits) - 1);
  by *= static_cast<Bits>(0x9e3779b97f4a7c15U);  // so that all bits have a part in the upper ones
  const bool away = (by >> (8 * sizeof(Bits) - 3) & 1U) != 0;
  const auto step = static_cast<Bits>(units);
  const T result = std::bit_cast<T>(std::bit_cast<Bits>(x) + (away ? step : Bits{0} - step));
  return std::isnormal(result) ? result : x;
}
inline uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
inline uint64_t bits_of(double x) { return std::bit_cast<uint64_t>(x); }
// For a function that is exact at 0.
inline float exp_of(float x, int units) {
  if (x == 0) return 1;
  return moved(static_cast<float>(std::exp(static_cast<double>(x))), units, bits_of(x));
}

}  // namespace megalith::cuda_emulation

// Found before those of the C library, as kernels are in this namespace.
namespace megalith::ops {

inline float expf(float x) { return cuda_emulation::exp_of(x, 2); }
inline float erff(float x) {
  return cuda_emulation::moved(static_cast<float>(std::erf(static_cast<double>(x))), 2, cuda_emulation::bits_of(x));
}
inline float erfcf(float x) {
  return cuda_emulation::moved(static_cast<float>(std::erfc(static_cast<double>(x))), 4, cuda_emulation::bits_of(x));
}
inline float logf(float x) {
  return cuda_emulation::moved(static_cast<float>(std::log(static_cast<double>(x))), 1, cuda_emulation::bits_of(x));
}
// ex2.approx.ftz
inline float emulated_power_of_two(float x) {
  if (x == 0) return 1;
  const auto y = static_cast<float>(std::exp2(static_cast<double>(x)));
  return y < 0x1p-126F ? 0 : cuda_emulation::moved(y, 2, cuda_emulation::bits_of(x));
}
inline float rsqrtf(float x) {
  const auto exact = static_cast<float>(1 / std::sqrt(static_cast<double>(x)));
  return cuda_emulation::moved(exact, 2, cuda_emulation::bits_of(x));
}
inline double log(double x) { return cuda_emulation::moved(std::log(x), 1, cuda_emulation::bits_of(x)); }
inline double sin(double x) { return cuda_emulation::moved(std::sin(x), 2, cuda_emulation::bits_of(x)); }
inline double cos(double x) { return cuda_emulation::moved(std::cos(x), 2, cuda_emulation::bits_of(x)); }

}  // namespace megalith::ops

inline float __expf(float x) {
  return megalith::cuda_emulation::exp_of(x, std::isfinite(x) ? 2 + static_cast<int>(std::fabs(1.173F * x)) : 0);
}
inline float __fdividef(float x, float y) {
  if (std::fabs(y) > 0x1p126F) return std::isinf(x) ? NAN : 0.0F;  // that is what it does
  return megalith::cuda_emulation::moved(x / y, 2, megalith::cuda_emulation::bits_of(y));
}
inline double __dadd_rn(double x, double y) { return x + y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline double __dmul_rn(double x, double y) { return x * y; }
