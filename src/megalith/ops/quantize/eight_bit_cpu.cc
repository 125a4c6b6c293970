// 8-bit numbers on the CPU. Threads own rows.
#include <algorithm>
#include <cmath>

#include "megalith/ops/kernel/cpu_math.h"
#include "megalith/ops/kernel/cpu_parallel.h"
#include "megalith/ops/quantize/eight_bit_internal.h"

namespace megalith::ops {

namespace {

constexpr int64_t kNumberGrain = 16 * 1024;  // fewest numbers per thread

int64_t row_grain(int64_t columns) { return std::max<int64_t>(1, kNumberGrain / std::max<int64_t>(1, columns)); }

// Returns the scale of the row.
float quantize_row(const c10::Half* x, int64_t columns, int8_t* codes) {
  float largest = 0;
  for (int64_t i = 0; i < columns; ++i) largest = std::max(largest, std::fabs(static_cast<float>(x[i])));
  const float factor = (1.0F / largest) * 127.0F;  // two roundings, as in torch's 127 / largest
  for (int64_t i = 0; i < columns; ++i) {
    // NaN in a row of zeros.
    const float scaled = static_cast<float>(x[i]) * factor;
    codes[i] = std::isnan(scaled) ? int8_t{0} : static_cast<int8_t>(std::nearbyint(scaled));
  }
  return largest;
}

template <typename T>
struct ReadRow {
  MEGALITH_ALWAYS_INLINE static void run(const int8_t* codes, float scale, int64_t columns, T* to) {
    for (int64_t i = 0; i < columns; ++i) {
      const float product = static_cast<float>(codes[i]) * scale;
      to[i] = from_acc<T>(product * kEightBitStep);
    }
  }
};

template <typename T>
void read_rows(const EightBitSlice& from, T* to) {
  parallel_for(from.rows, row_grain(from.columns), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      run_kernel<ReadRow<T>>(from.codes + i * from.stride, from.scales[i], from.columns, to + i * from.columns);
  });
}

}  // namespace

void quantize_eight_bit_cpu(const c10::Half* x, int64_t rows, int64_t columns, int8_t* codes, float* scales) {
  parallel_for(rows, row_grain(columns), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) scales[i] = quantize_row(x + i * columns, columns, codes + i * columns);
  });
}

void read_eight_bit_cpu(const EightBitSlice& from, c10::ScalarType dtype, void* to) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return read_rows(from, static_cast<float*>(to));
    case c10::ScalarType::BFloat16:
      return read_rows(from, static_cast<c10::BFloat16*>(to));
    case c10::ScalarType::Half:
      return read_rows(from, static_cast<c10::Half*>(to));
    default:
      throw InternalError("8-bit numbers are read as fp32, bf16 or fp16");
  }
}

}  // namespace megalith::ops
