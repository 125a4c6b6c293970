// Copies and weighted sums of rows on the CPU. Threads own ranges of rows (copies) or of tokens (sums); loops over
// columns are vectorized. A token's sum goes through its k rows block of columns by block, so that the running sums
// stay in the first-level cache: every row is read once, every token written once. Backward walks over the copies of a
// token: a row belongs to one token only, so that threads never write the same row.
//
//   token i, columns [0, 256)      sum = residual[i]; sum += w₀ rows[row[i][0]]; ...; y[i] = sum
//   token i, columns [256, 512)    ...
//
// In elements: copies read and write r h; sums read r h (+ t h) and write t h; backward reads r h + t h, writes r h.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "megalith/ops/kernel/cpu_math.h"
#include "megalith/ops/kernel/cpu_parallel.h"
#include "megalith/ops/moe/permute_internal.h"

namespace megalith::ops {

namespace {

// Fewest elements per thread: fewer are not worth waking it.
constexpr int64_t kGrain = 16384;
// Columns summed at a time: their sums stay in registers and the first-level cache.
constexpr int64_t kBlock = 256;

int64_t grain(int64_t h) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, h)); }

// Tokens [begin, end): y[i] = residual[i] + Σ_j w[i][j] rows[row[i][j]].
template <typename T>
struct SumRows {
  MEGALITH_ALWAYS_INLINE static void run(const T* rows, const acc_t<T>* w, const int64_t* row, const T* residual, T* y,
                                         int64_t begin, int64_t end, int64_t k, int64_t h) {
    acc_t<T> sum[kBlock];
    for (int64_t i = begin; i < end; ++i)
      for (int64_t column = 0; column < h; column += kBlock) {
        const int64_t n = h - column < kBlock ? h - column : kBlock;
        if (residual) {
          const T* MEGALITH_RESTRICT in = residual + i * h + column;
#pragma omp simd
          for (int64_t c = 0; c < n; ++c) sum[c] = to_acc(in[c]);
        } else {
#pragma omp simd
          for (int64_t c = 0; c < n; ++c) sum[c] = 0;
        }
        for (int64_t j = 0; j < k; ++j) {
          const int64_t source = row[i * k + j];
          if (source < 0) continue;
          const acc_t<T> factor = w ? w[i * k + j] : acc_t<T>(1);
          const T* MEGALITH_RESTRICT in = rows + source * h + column;
#pragma omp simd
          for (int64_t c = 0; c < n; ++c) sum[c] += factor * to_acc(in[c]);
        }
        T* MEGALITH_RESTRICT out = y + i * h + column;
#pragma omp simd
        for (int64_t c = 0; c < n; ++c) out[c] = from_acc<T>(sum[c]);
      }
  }
};

// Tokens [begin, end): one pass over each copy gives its gradient and the dot product for its weight.
template <typename T>
struct SumRowsBackward {
  MEGALITH_ALWAYS_INLINE static void run(const T* rows, const acc_t<T>* w, const int64_t* row, const T* dy, T* drows,
                                         acc_t<T>* dw, int64_t begin, int64_t end, int64_t k, int64_t h) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < k; ++j) {
        const int64_t target = row[i * k + j];
        if (target < 0) {
          dw[i * k + j] = 0;
          continue;
        }
        const acc_t<T> factor = w[i * k + j];
        const T* MEGALITH_RESTRICT grad = dy + i * h;
        const T* MEGALITH_RESTRICT value = rows + target * h;
        T* MEGALITH_RESTRICT out = drows + target * h;
        acc_t<T> dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int64_t c = 0; c < h; ++c) {
          const acc_t<T> g = to_acc(grad[c]);
          dot += g * to_acc(value[c]);
          out[c] = from_acc<T>(factor * g);
        }
        dw[i * k + j] = dot;
      }
  }
};

}  // namespace

void copy_rows_cpu(const PermuteSizes& sizes, const void* x, const int64_t* token, void* y) {
  const size_t bytes = static_cast<size_t>(sizes.h) * c10::elementSize(sizes.dtype);
  parallel_for(sizes.r, grain(sizes.h), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n)
      std::memcpy(static_cast<char*>(y) + static_cast<size_t>(n) * bytes,
                  static_cast<const char*>(x) + static_cast<size_t>(token[n]) * bytes, bytes);
  });
}

void sum_rows_cpu(const PermuteSizes& sizes, const void* rows, const void* w, const int64_t* row, const void* residual,
                  void* y) {
  visit_floating(sizes.dtype, [&]<typename T>() {
    parallel_for(sizes.t, grain(sizes.h * std::max<int64_t>(1, sizes.k)), [&](int64_t begin, int64_t end) {
      run_kernel<SumRows<T>>(static_cast<const T*>(rows), static_cast<const acc_t<T>*>(w), row,
                             static_cast<const T*>(residual), static_cast<T*>(y), begin, end, sizes.k, sizes.h);
    });
  });
}

void sum_rows_backward_cpu(const PermuteSizes& sizes, const void* rows, const void* w, const int64_t* row,
                           const void* dy, void* drows, void* dw) {
  visit_floating(sizes.dtype, [&]<typename T>() {
    parallel_for(sizes.t, grain(sizes.h * std::max<int64_t>(1, sizes.k)), [&](int64_t begin, int64_t end) {
      run_kernel<SumRowsBackward<T>>(static_cast<const T*>(rows), static_cast<const acc_t<T>*>(w), row,
                                     static_cast<const T*>(dy), static_cast<T*>(drows), static_cast<acc_t<T>*>(dw),
                                     begin, end, sizes.k, sizes.h);
    });
  });
}

// A counting sort: the numbers of choices become the starts of the experts, which then move on with each choice placed.
void sort_choices_cpu(const int64_t* chosen, int64_t n, int64_t k, int64_t experts, int64_t* token, int64_t* row,
                      int64_t* first) {
  std::fill(first, first + experts + 1, 0);
  for (int64_t i = 0; i < n; ++i) ++first[chosen[i] + 1];
  std::partial_sum(first, first + experts + 1, first);
  std::vector<int64_t> next(first, first + experts);
  for (int64_t i = 0; i < n; ++i) {
    row[i] = next[static_cast<size_t>(chosen[i])]++;
    token[row[i]] = i / k;
  }
}

}  // namespace megalith::ops
