// Stored values on the CPU: threads own blocks of 64 elements. Writing goes over a block twice, first for its largest
// magnitude, and finds it in the cache the second time.
#include <c10/util/Float8_e4m3fn.h>

#include <bit>
#include <cmath>

#include "megalith/ops/kernel/cpu_math.h"
#include "megalith/ops/kernel/cpu_parallel.h"
#include "megalith/ops/update/stored_values.h"
#include "megalith/ops/update/stored_values_internal.h"

namespace megalith::ops {

namespace {

constexpr int64_t kBlockGrain = 256;  // fewest blocks per thread
constexpr float kLargestE4m3 = 448;

// The smallest power of two with amax / scale <= 2^15.
MEGALITH_ALWAYS_INLINE float scale_of(float amax, c10::Half /*type*/) {
  const uint32_t exponent = (std::bit_cast<uint32_t>(amax) + 0x7fffffU) >> 23;  // rounded up to a power of two
  const uint32_t smallest = std::bit_cast<uint32_t>(kSmallestScale) >> 23;
  return std::bit_cast<float>((exponent < smallest + 15 ? smallest : exponent - 15) << 23);
}
// amax / 448, rounded up to 16 significant bits.
MEGALITH_ALWAYS_INLINE float scale_of(float amax, c10::Float8_e4m3fn /*type*/) {
  const uint32_t bits = (std::bit_cast<uint32_t>(amax / kLargestE4m3) + 0xffU) & ~0xffU;
  const auto scale = std::bit_cast<float>(bits);
  return scale < kSmallestScale ? kSmallestScale : scale;
}

template <typename T>
struct ReadScaled {
  MEGALITH_ALWAYS_INLINE static void run(const T* MEGALITH_RESTRICT values, const float* MEGALITH_RESTRICT scales,
                                         int64_t blocks, float* MEGALITH_RESTRICT to) {
    for (int64_t b = 0; b < blocks; ++b)
      for (int64_t i = b * kScaleBlock; i < (b + 1) * kScaleBlock; ++i)
        to[i] = static_cast<float>(values[i]) * scales[b];
  }
};

template <typename T>
struct WriteScaled {
  MEGALITH_ALWAYS_INLINE static void run(const float* MEGALITH_RESTRICT from, int64_t blocks,
                                         T* MEGALITH_RESTRICT values, float* MEGALITH_RESTRICT scales) {
    for (int64_t b = 0; b < blocks; ++b) {
      const float* x = from + b * kScaleBlock;
      float amax = 0;
#pragma omp simd reduction(max : amax)
      for (int64_t i = 0; i < kScaleBlock; ++i) amax = std::fmax(amax, std::fabs(x[i]));
      scales[b] = scale_of(amax, T());
      const float inverse = 1 / scales[b];
      for (int64_t i = 0; i < kScaleBlock; ++i) values[b * kScaleBlock + i] = static_cast<T>(x[i] * inverse);
    }
  }
};

struct JoinHalves {
  MEGALITH_ALWAYS_INLINE static void run(const uint16_t* MEGALITH_RESTRICT high, const int16_t* MEGALITH_RESTRICT low,
                                         int64_t n, float* MEGALITH_RESTRICT to) {
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t upper = static_cast<uint32_t>(high[i]) - (low[i] < 0 ? 1U : 0U);
      to[i] = std::bit_cast<float>(upper << 16 | static_cast<uint16_t>(low[i]));
    }
  }
};

struct SplitHalves {
  MEGALITH_ALWAYS_INLINE static void run(const float* MEGALITH_RESTRICT from, int64_t n,
                                         uint16_t* MEGALITH_RESTRICT high, int16_t* MEGALITH_RESTRICT low) {
    for (int64_t i = 0; i < n; ++i) {
      const auto bits = std::bit_cast<uint32_t>(from[i]);
      low[i] = static_cast<int16_t>(bits & 0xffffU);
      high[i] = static_cast<uint16_t>((bits >> 16) + ((bits >> 15) & 1U));
    }
  }
};

// Calls f.template operator()<T>() with the type of a format that has scales.
template <typename F>
void visit_format(c10::ScalarType format, F&& f) {
  if (format == c10::ScalarType::Half) return f.template operator()<c10::Half>();
  f.template operator()<c10::Float8_e4m3fn>();
}

}  // namespace

void read_scaled_cpu(c10::ScalarType format, const void* values, const float* scales, int64_t n, float* to) {
  visit_format(format, [&]<typename T>() {
    parallel_for(n / kScaleBlock, kBlockGrain, [&](int64_t begin, int64_t end) {
      run_kernel<ReadScaled<T>>(static_cast<const T*>(values) + begin * kScaleBlock, scales + begin, end - begin,
                                to + begin * kScaleBlock);
    });
  });
}

void write_scaled_cpu(c10::ScalarType format, const float* from, int64_t n, void* values, float* scales) {
  visit_format(format, [&]<typename T>() {
    parallel_for(n / kScaleBlock, kBlockGrain, [&](int64_t begin, int64_t end) {
      run_kernel<WriteScaled<T>>(from + begin * kScaleBlock, end - begin, static_cast<T*>(values) + begin * kScaleBlock,
                                 scales + begin);
    });
  });
}

void join_halves_cpu(const uint16_t* high, const int16_t* low, int64_t n, float* to) {
  parallel_for(n, kBlockGrain * kScaleBlock, [&](int64_t begin, int64_t end) {
    run_kernel<JoinHalves>(high + begin, low + begin, end - begin, to + begin);
  });
}

void split_halves_cpu(const float* from, int64_t n, uint16_t* high, int16_t* low) {
  parallel_for(n, kBlockGrain * kScaleBlock, [&](int64_t begin, int64_t end) {
    run_kernel<SplitHalves>(from + begin, end - begin, high + begin, low + begin);
  });
}

}  // namespace megalith::ops
