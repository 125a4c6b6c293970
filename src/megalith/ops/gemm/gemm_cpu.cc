// y += bias + residual on the CPU: threads own ranges of rows, columns are vectorized. Reads y and the residual, writes
// y: 6 bytes per element of bf16. The bias, h numbers, stays in the cache. The sum is made in acc and rounded once.
#include <algorithm>

#include "megalith/ops/gemm/gemm_internal.h"
#include "megalith/ops/kernel/cpu_math.h"
#include "megalith/ops/kernel/cpu_parallel.h"

namespace megalith::ops {

namespace {

// Fewest elements per thread: fewer are not worth waking it.
constexpr int64_t kGrain = 16384;

template <typename T>
struct AddRows {
  MEGALITH_ALWAYS_INLINE static void run(T* y, const acc_t<T>* MEGALITH_RESTRICT bias, const T* residual, int64_t begin,
                                         int64_t end, int64_t h) {
    for (int64_t row = begin; row < end; ++row) {
      T* MEGALITH_RESTRICT out = y + row * h;
      const T* MEGALITH_RESTRICT in = residual + row * h;
#pragma omp simd
      for (int64_t i = 0; i < h; ++i) out[i] = from_acc<T>(to_acc(out[i]) + bias[i] + to_acc(in[i]));
    }
  }
};

}  // namespace

void add_bias_residual_cpu(c10::ScalarType dtype, void* y, const void* bias, const void* residual, int64_t t,
                           int64_t h) {
  visit_floating(dtype, [&]<typename T>() {
    parallel_for(t, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, h)), [&](int64_t begin, int64_t end) {
      run_kernel<AddRows<T>>(static_cast<T*>(y), static_cast<const acc_t<T>*>(bias), static_cast<const T*>(residual),
                             begin, end, h);
    });
  });
}

}  // namespace megalith::ops
