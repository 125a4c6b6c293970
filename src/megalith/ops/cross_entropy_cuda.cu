// A block a row. Legend: t rows, v valid columns on this rank.
#include <cmath>

#include "megalith/ops/cross_entropy_internal.h"
#include "megalith/ops/cuda_math.cuh"

namespace megalith::ops {

namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

// Σ exp(x - max), with its max.
struct Part {
  float max, sum;
};
__device__ inline Part merge(Part a, Part b) {
  const float max = fmaxf(a.max, b.max);
  if (max == -INFINITY) return {max, 0};
  return {max, a.sum * __expf(a.max - max) + b.sum * __expf(b.max - max)};
}

template <typename T, int n>
__global__ void stats_kernel(LogitRows rows, const T* logits, LogitStats stats) {
  __shared__ Part parts[kWarps];
  __shared__ float scratch[32];
  const int64_t row = blockIdx.x, label = rows.labels[row];
  auto *max = static_cast<float*>(stats.max), *sum = static_cast<float*>(stats.sum);
  auto *target = static_cast<float*>(stats.target), *total = static_cast<float*>(stats.total);
  if (label == rows.ignore_index) {
    if (threadIdx.x != 0) return;
    max[row] = sum[row] = target[row] = 0;
    if (total != nullptr) total[row] = 0;
    return;
  }
  const T* x = logits + row * rows.distance;
  Part mine{-INFINITY, 0};
  float all = 0;
  const int64_t vectors = rows.valid / n;
  const auto take = [&]<int m>(const float(&value)[m]) {
    float top = value[0];
#pragma unroll
    for (int j = 1; j < m; ++j) top = fmaxf(top, value[j]);
    if (top > mine.max) {
      mine.sum *= __expf(mine.max - top);
      mine.max = top;
    }
#pragma unroll
    for (int j = 0; j < m; ++j) {
      mine.sum += __expf(value[j] - mine.max);
      all += value[j];
    }
  };
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
    float value[n];
    load<n>(x + i * n, value);
    take(value);
  }
  for (int64_t i = vectors * n + threadIdx.x; i < rows.valid; i += kThreads) {
    const float value[1] = {to_float(x[i])};
    take(value);
  }
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2)
    mine = merge(mine, {__shfl_xor_sync(0xffffffffU, mine.max, lane), __shfl_xor_sync(0xffffffffU, mine.sum, lane)});
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
  if (total != nullptr) all = block_sum(all, scratch);
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kWarps; ++w) mine = merge(mine, parts[w]);
  const int64_t column = label - rows.first_id;
  max[row] = mine.max;
  sum[row] = mine.sum;
  target[row] = column >= 0 && column < rows.valid ? to_float(x[column]) : 0;
  if (total != nullptr) total[row] = all;
}

__global__ void losses_kernel(LogitRows rows, LogitStats stats, LossWeights weights, double* log_sum_exp, float* loss) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= rows.rows) return;
  if (rows.labels[row] == rows.ignore_index) {
    log_sum_exp[row] = 0;
    loss[row] = 0;
    return;
  }
  const double max = static_cast<const float*>(stats.max)[row];
  const double log_sum = log(static_cast<double>(static_cast<const float*>(stats.sum)[row]));
  const double target = static_cast<const float*>(stats.target)[row];
  const double total = stats.total == nullptr ? 0 : static_cast<const float*>(stats.total)[row];
  const double lse = max + log_sum;
  log_sum_exp[row] = lse;
  loss[row] = static_cast<float>(log_sum + (max - weights.on_target * target - weights.off_target * total) +
                                 weights.z * lse * lse);
}

template <typename T, int n>
__global__ void grads_kernel(LogitRows rows, T* logits, const double* log_sum_exp, const float* grad_loss,
                             LossWeights weights) {
  const int64_t row = blockIdx.x;
  T* x = logits + row * rows.distance;
  const float grad = rows.labels[row] == rows.ignore_index ? 0 : grad_loss[row];
  const int64_t column = rows.labels[row] - rows.first_id;
  const double lse = log_sum_exp[row];
  // In two parts: a logit may be near the sum, and their difference is what counts.
  const float high = static_cast<float>(lse), low = static_cast<float>(lse - static_cast<double>(high));
  const float scale = 1 + 2 * static_cast<float>(weights.z) * high;
  const auto on = static_cast<float>(weights.on_target), off = static_cast<float>(weights.off_target);
  const auto slope = [&](float value, int64_t i) {
    const float p = __expf(value - high - low) * scale - off - (i == column ? on : 0);
    return p * grad;
  };
  const int64_t vectors = rows.columns / n;
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
    float value[n];
    load<n>(x + i * n, value);
#pragma unroll
    for (int j = 0; j < n; ++j) value[j] = grad == 0 || i * n + j >= rows.valid ? 0 : slope(value[j], i * n + j);
    store<n>(value, x + i * n);
  }
  for (int64_t i = vectors * n + threadIdx.x; i < rows.columns; i += kThreads)
    x[i] = from_float<T>(grad == 0 || i >= rows.valid ? 0 : slope(to_float(x[i]), i));
}

// run.template operator()<T, n>()
template <typename Run>
void for_rows(const LogitRows& rows, const void* logits, const Run& run) {
  for_dtype(rows.dtype, [&]<typename T>(T) {
    if (aligned(logits) && rows.distance % kVector<T> == 0)
      run.template operator()<T, kVector<T>>();
    else
      run.template operator()<T, 1>();
  });
}

}  // namespace

void logit_stats_cuda(const LogitRows& rows, const void* logits, const LogitStats& stats, void* stream) {
  if (rows.rows == 0) return;
  for_rows(rows, logits, [&]<typename T, int n>() {
    stats_kernel<T, n><<<static_cast<unsigned>(rows.rows), kThreads, 0, stream_from(stream)>>>(
        rows, static_cast<const T*>(logits), stats);
  });
  check_launch("logit_stats");
}

void losses_cuda(const LogitRows& rows, const LogitStats& stats, const LossWeights& weights, double* log_sum_exp,
                 void* loss, void* stream) {
  if (rows.rows == 0) return;
  const auto blocks = static_cast<unsigned>((rows.rows + 255) / 256);
  losses_kernel<<<blocks, 256, 0, stream_from(stream)>>>(rows, stats, weights, log_sum_exp, static_cast<float*>(loss));
  check_launch("losses");
}

void logit_grads_cuda(const LogitRows& rows, void* logits, const double* log_sum_exp, const void* grad_loss,
                      const LossWeights& weights, void* stream) {
  if (rows.rows == 0 || rows.columns == 0) return;
  for_rows(rows, logits, [&]<typename T, int n>() {
    grads_kernel<T, n><<<static_cast<unsigned>(rows.rows), kThreads, 0, stream_from(stream)>>>(
        rows, static_cast<T*>(logits), log_sum_exp, static_cast<const float*>(grad_loss), weights);
  });
  check_launch("logit_grads");
}

}  // namespace megalith::ops
