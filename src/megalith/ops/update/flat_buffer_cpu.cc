// Passes over flat buffers on the CPU: threads own ranges of elements, loops are vectorized, memory is read once. Sums
// of squares have two levels: a block of 64 elements in fp64, in an order that only the instruction set decides, then
// an exact sum per thread; merging exact sums is exact, so that the number of threads does not matter.
//
//   flat     | 64 | 64 | 64 | ... | rest |      blocks start at multiples of kFlatBlock of the buffer, however many
//   fp64       s₀   s₁   s₂          sₙ         threads share it
//   exact    s₀ + s₁ + ... + sₙ, in any order
#include <algorithm>
#include <atomic>
#include <vector>

#include "megalith/ops/kernel/cpu_math.h"
#include "megalith/ops/kernel/cpu_parallel.h"
#include "megalith/ops/update/flat_buffer.h"
#include "megalith/ops/update/flat_buffer_internal.h"

namespace megalith::ops {

namespace {

// Fewest elements per thread: fewer are not worth waking it.
constexpr int64_t kGrain = 32768;

// The sum of squares of n elements. Products of two floats are exact in fp64; only the additions round.
template <typename T>
struct SquareBlock {
  MEGALITH_ALWAYS_INLINE static double run(const T* MEGALITH_RESTRICT x, int64_t n) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) {
      const auto value = static_cast<double>(to_acc(x[i]));
      sum += value * value;
    }
    return sum;
  }
};

// Computes the sums of `count` whole blocks: one call for many, since the kernel is chosen at run time.
template <typename T>
struct SquareBlocks {
  MEGALITH_ALWAYS_INLINE static void run(const T* MEGALITH_RESTRICT x, double* MEGALITH_RESTRICT sums, int64_t count) {
    for (int64_t b = 0; b < count; ++b) sums[b] = SquareBlock<T>::run(x + b * kFlatBlock, kFlatBlock);
  }
};

// One thread's part, which starts at a multiple of kFlatBlock.
template <typename T>
void add_squares_part(const T* x, int64_t n, ExactSum& sum) {
  constexpr int64_t kAtOnce = 64;  // blocks per call of the kernel
  double sums[kAtOnce];
  const int64_t blocks = n / kFlatBlock;
  for (int64_t b = 0; b < blocks; b += kAtOnce) {
    const int64_t count = std::min(kAtOnce, blocks - b);
    run_kernel<SquareBlocks<T>>(x + b * kFlatBlock, static_cast<double*>(sums), count);
    for (int64_t i = 0; i < count; ++i) sum.add(sums[i]);
  }
  if (n % kFlatBlock != 0) sum.add(run_kernel<SquareBlock<T>>(x + blocks * kFlatBlock, n % kFlatBlock));
}

// Counts elements that are 0 or -0.
template <typename T>
struct CountZeros {
  MEGALITH_ALWAYS_INLINE static int64_t run(const T* MEGALITH_RESTRICT x, int64_t n) {
    int64_t zeros = 0;
#pragma omp simd reduction(+ : zeros)
    for (int64_t i = 0; i < n; ++i) zeros += to_acc(x[i]) == 0 ? 1 : 0;
    return zeros;
  }
};

// x *= factor; returns whether all elements were finite before. Counts instead of branching, so that the loop
// vectorizes.
template <typename T>
struct ScaleAndCheck {
  MEGALITH_ALWAYS_INLINE static bool run(T* MEGALITH_RESTRICT x, int64_t n, acc_t<T> factor) {
    int64_t bad = 0;
#pragma omp simd reduction(+ : bad)
    for (int64_t i = 0; i < n; ++i) {
      const acc_t<T> value = to_acc(x[i]);
      bad += value - value == 0 ? 0 : 1;  // infinities and NaN give NaN
      x[i] = from_acc<T>(value * factor);
    }
    return bad == 0;
  }
};

// ScaleAndCheck with factor 1: reads only.
template <typename T>
struct Check {
  MEGALITH_ALWAYS_INLINE static bool run(const T* MEGALITH_RESTRICT x, int64_t n) {
    int64_t bad = 0;
#pragma omp simd reduction(+ : bad)
    for (int64_t i = 0; i < n; ++i) {
      const acc_t<T> value = to_acc(x[i]);
      bad += value - value == 0 ? 0 : 1;
    }
    return bad == 0;
  }
};

}  // namespace

void add_squares_cpu(c10::ScalarType dtype, const void* flat, int64_t n, ExactSum& sum) {
  const int64_t blocks = (n + kFlatBlock - 1) / kFlatBlock;
  const int64_t parts = parallel_parts(blocks, kGrain / kFlatBlock);
  std::vector<ExactSum> sums(parts);
  visit_floating(dtype, [&]<typename T>() {
    parallel_for_parts(blocks, parts, [&](int64_t part, int64_t begin, int64_t end) {
      const int64_t first = begin * kFlatBlock, last = std::min(n, end * kFlatBlock);
      add_squares_part(static_cast<const T*>(flat) + first, last - first, sums[part]);
    });
  });
  for (const ExactSum& part : sums) sum.add(part);
}

int64_t count_zeros_cpu(c10::ScalarType dtype, const void* flat, int64_t n) {
  std::atomic<int64_t> zeros = 0;  // integers: the order of additions does not matter
  visit_floating(dtype, [&]<typename T>() {
    parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
      zeros += run_kernel<CountZeros<T>>(static_cast<const T*>(flat) + begin, end - begin);
    });
  });
  return zeros;
}

bool scale_and_check_cpu(c10::ScalarType dtype, void* flat, int64_t n, double factor) {
  std::atomic<bool> finite = true;
  visit_floating(dtype, [&]<typename T>() {
    parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
      T* x = static_cast<T*>(flat) + begin;
      const bool good = factor == 1 ? run_kernel<Check<T>>(x, end - begin)
                                    : run_kernel<ScaleAndCheck<T>>(x, end - begin, static_cast<acc_t<T>>(factor));
      if (!good) finite = false;
    });
  });
  return finite;
}

}  // namespace megalith::ops
