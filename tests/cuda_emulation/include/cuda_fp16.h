// In CUDA's place; see cuda_runtime.h.
#pragma once

#include <c10/util/Half.h>

#include <cmath>
#include <cstdint>

struct __half {
  uint16_t bits;
};
using __half_raw = __half;

inline float __half2float(__half x) { return c10::detail::fp16_ieee_to_fp32_value(x.bits); }
inline __half __float2half_rn(float x) { return {c10::detail::fp16_ieee_from_fp32_value(x)}; }

struct alignas(4) __half2 {
  __half x, y;
};
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
// The number where one is NaN.
inline __half2 __hmax2(__half2 a, __half2 b) {
  return {__float2half_rn(std::fmax(__half2float(a.x), __half2float(b.x))),
          __float2half_rn(std::fmax(__half2float(a.y), __half2float(b.y)))};
}
