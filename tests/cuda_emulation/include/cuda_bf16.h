// In CUDA's place; see cuda_runtime.h.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

struct __nv_bfloat16 {
  uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
// To nearest, to even where two are as near.
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  if (x != x) return {0x7fff};
  const auto bits = std::bit_cast<uint32_t>(x);
  return {static_cast<uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16)};
}

struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
// The number where one is NaN.
inline __nv_bfloat162 __hmax2(__nv_bfloat162 a, __nv_bfloat162 b) {
  return {__float2bfloat16_rn(std::fmax(__bfloat162float(a.x), __bfloat162float(b.x))),
          __float2bfloat16_rn(std::fmax(__bfloat162float(a.y), __bfloat162float(b.y)))};
}
