// 4-bit numbers on the CPU. Threads own blocks of numbers when quantizing, and rows when reading. Compiled without
// contraction of products and sums: map · nested + offset is two roundings, as in bitsandbytes.
#include <algorithm>
#include <cmath>

#include "megalith/ops/kernel/cpu_math.h"
#include "megalith/ops/kernel/cpu_parallel.h"
#include "megalith/ops/quantize/four_bit_internal.h"

namespace megalith::ops {

namespace {

constexpr int64_t kBlockGrain = 64;          // fewest blocks per thread
constexpr int64_t kNumberGrain = 16 * 1024;  // fewest numbers per thread when reading

// Returns the code of a number between -1 and 1. Sums of comparisons need no branches.
inline uint8_t nf4_code(float x) {
  int code = 0;
  for (const float limit : kNf4Limits) code += x > limit ? 1 : 0;
  return static_cast<uint8_t>(code);
}
inline uint8_t fp4_code(float x) {
  const float size = std::fabs(x);
  int place = 0;
  for (const float limit : kFp4Limits) place += size > limit ? 1 : 0;
  return static_cast<uint8_t>(kFp4Codes[place] + (x < 0 ? 8 : 0));
}

// Quantizes the numbers of block b. Blocks have an even size, so bytes are not shared.
template <typename T>
void quantize_block(const T* x, int64_t n, bool nf4, int64_t block, int64_t b, uint8_t* codes, float* scales) {
  const int64_t begin = b * block, end = std::min(n, begin + block);
  float largest = 0;
  for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(static_cast<float>(x[i])));
  scales[b] = largest;
  const float inverse = 1.0F / std::max(largest, kSmallestDivisor);
  const auto code = [&](int64_t i) {
    const float scaled = i < end ? static_cast<float>(x[i]) * inverse : 0.0F;
    return nf4 ? nf4_code(scaled) : fp4_code(scaled);
  };
  for (int64_t i = begin; i < end; i += 2) codes[i / 2] = static_cast<uint8_t>(code(i) << 4 | code(i + 1));
}

inline uint8_t code_at(const uint8_t* codes, int64_t i) { return i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15; }

// Returns the scale number `at` of those that the rectangle holds, which is that of block `block` of the matrix.
inline float scale_at(const FourBitArrays& from, int64_t at, int64_t block) {
  if (from.scales != nullptr) return from.scales[at];
  const float product = from.map[from.scale_codes[at]] * from.nested[block / 256];
  return product + from.offset;
}

template <typename T>
void read_row(const FourBitArrays& from, int64_t i, int64_t column, int64_t count, T* to) {
  const int64_t row = (from.first_row + i) * from.whole_columns;  // its first number in the matrix
  // The block of the first scale that serves this row, and where that scale lies.
  const int64_t cut = from.scales_per_row;
  const int64_t first_block =
      cut > 0 ? (row + from.first_column) / from.block : from.first_row * from.whole_columns / from.block;
  const int64_t first_scale = cut > 0 ? i * cut : 0;
  const int64_t end = column + count;
  for (int64_t j = column; j < end;) {
    const int64_t number = row + from.first_column + j, block = number / from.block;
    const float scale = scale_at(from, first_scale + block - first_block, block);
    const int64_t stop = std::min(end, j + (block + 1) * from.block - number);
    for (; j < stop; ++j) *to++ = static_cast<T>(from.values[code_at(from.codes, i * from.columns + j)] * scale);
  }
}

template <typename Run>
void for_float(c10::ScalarType dtype, const Run& run) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return run(float{});
    case c10::ScalarType::BFloat16:
      return run(c10::BFloat16{});
    case c10::ScalarType::Half:
      return run(c10::Half{});
    default:
      throw InternalError("4-bit numbers are made of, and read as, fp32, bf16 or fp16");
  }
}

}  // namespace

void quantize_four_bit_cpu(c10::ScalarType dtype, const void* x, int64_t n, bool nf4, int64_t block, uint8_t* codes,
                           float* scales) {
  for_float(dtype, [&]<typename T>(T) {
    parallel_for((n + block - 1) / block, kBlockGrain, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) quantize_block(static_cast<const T*>(x), n, nf4, block, b, codes, scales);
    });
  });
}

void read_four_bit_cpu(const FourBitArrays& from, const FourBitSlice& slice, c10::ScalarType dtype, void* to) {
  if (slice.columns == 0) return;
  for_float(dtype, [&]<typename T>(T) {
    parallel_for(slice.rows, std::max<int64_t>(1, kNumberGrain / slice.columns), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        read_row(from, slice.row + i, slice.column, slice.columns, static_cast<T*>(to) + i * slice.columns);
    });
  });
}

}  // namespace megalith::ops
