// The slices in which products read weights in 4 or 8 bits, for the products and for their footprints.
#pragma once

#include <algorithm>
#include <cstdint>

namespace megalith::nn {

inline constexpr int64_t kQuantizedSlice = int64_t{16} << 20;  // numbers in a slice

// Returns how many of `count` rows or columns of `size` numbers each form a slice: all of them if they fit into one,
// otherwise a multiple of 64, at least 64.
inline int64_t quantized_slice(int64_t count, int64_t size) {
  const int64_t fitting = kQuantizedSlice / std::max<int64_t>(size, 1);
  return fitting >= count ? count : std::min(count, std::max<int64_t>(64, fitting / 64 * 64));
}

}  // namespace megalith::nn
