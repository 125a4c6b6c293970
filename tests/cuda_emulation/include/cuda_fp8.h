// In CUDA's place; see cuda_runtime.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <cuda_fp16.h>
#include <cuda_runtime.h>

enum __nv_saturation_t { __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };
using __nv_fp8_storage_t = uint8_t;
using __nv_fp8x2_storage_t = uint16_t;

// To nearest, to even where two are as near; what is beyond the largest number becomes that.
inline uint8_t emulated_fp8(float x, __nv_fp8_interpretation_t kind) {
  const bool e4m3 = kind == __NV_E4M3;
  const int mantissa = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
  if (std::isnan(x)) return e4m3 ? 0x7f : 0x7e;
  const unsigned sign = std::signbit(x) ? 0x80U : 0U;
  const double size = std::min(std::fabs(static_cast<double>(x)), e4m3 ? 448.0 : 57344.0);
  const int exponent = size == 0 ? 1 - bias : std::max(std::ilogb(size), 1 - bias);
  const auto units = static_cast<unsigned>(std::nearbyint(std::ldexp(size, mantissa - exponent)));
  return static_cast<uint8_t>(sign | (units + (static_cast<unsigned>(exponent + bias - 1) << mantissa)));
}
inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 x, __nv_saturation_t /*always*/,
                                                     __nv_fp8_interpretation_t kind) {
  return static_cast<uint16_t>(emulated_fp8(x.x, kind) | emulated_fp8(x.y, kind) << 8);
}
inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t /*always*/, __nv_fp8_interpretation_t kind) {
  return emulated_fp8(x, kind);
}
// Every number of fp8 is one of fp16.
inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t x, __nv_fp8_interpretation_t kind) {
  if (kind == __NV_E5M2) return {static_cast<uint16_t>(x << 8)};
  if ((x & 0x7fU) == 0x7fU) return {0x7fff};
  const int exponent = x >> 3 & 15, fraction = x & 7;
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                   : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  return __float2half_rn((x & 0x80U) != 0 ? -size : size);
}
