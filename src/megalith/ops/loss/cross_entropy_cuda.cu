// A block a row. Legend: t rows, v valid columns on this rank.
#include <cmath>

#include "megalith/ops/loss/cross_entropy_cuda.cuh"

namespace megalith::ops {

namespace {

constexpr int kThreads = 512;
constexpr int kRowThreads = 1024;  // where a row is looked at twice
// Rows that are read again have to stay in the second-level cache meanwhile: so many bytes of them at most.
constexpr int64_t kCachedBytes = int64_t{32} << 20;

// Σ exp(x - max), with its max.
struct Part {
  float max, sum;
};
__device__ inline Part merge(Part a, Part b) {
  const float max = fmaxf(a.max, b.max);
  if (max == -INFINITY) return {max, 0};
  return {max, a.sum * __expf(a.max - max) + b.sum * __expf(b.max - max)};
}

// What a thread, then a block, has seen of a row.
struct Seen {
  Part part{-INFINITY, 0};
  float total = 0;

  template <int m>
  __device__ void take(const float (&value)[m]) {
    float top = value[0];
#pragma unroll
    for (int j = 1; j < m; ++j) top = fmaxf(top, value[j]);
    if (top > part.max) {
      part.sum *= __expf(part.max - top);
      part.max = top;
    }
#pragma unroll
    for (int j = 0; j < m; ++j) {
      part.sum += __expf(value[j] - part.max);
      total += value[j];
    }
  }
};

// What the threads of the block have seen together, on every thread; the total only where wanted.
__device__ inline Seen all_seen(Seen seen, bool with_total) {
  __shared__ Part parts[32];
  __shared__ float scratch[33];
  Part& mine = seen.part;
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2)
    mine = merge(mine, {__shfl_xor_sync(0xffffffffU, mine.max, lane), __shfl_xor_sync(0xffffffffU, mine.sum, lane)});
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
  if (with_total) seen.total = block_sum(seen.total, scratch);
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  mine = lane < static_cast<int>(blockDim.x) / 32 ? parts[lane] : Part{-INFINITY, 0};
#pragma unroll
  for (int other = 16; other > 0; other /= 2)
    mine = merge(mine, {__shfl_xor_sync(0xffffffffU, mine.max, other), __shfl_xor_sync(0xffffffffU, mine.sum, other)});
  return seen;
}

// The statistics of x [valid], on every thread.
template <typename T, int n>
__device__ inline Seen look_at(const T* x, int64_t valid, bool with_total) {
  const int threads = static_cast<int>(blockDim.x);
  Seen seen;
  const int vectors = static_cast<int>(valid / n), end = static_cast<int>(valid);
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += threads) {
    float value[n];
    load<n>(x + i * n, value);
    seen.take(value);
  }
  for (int i = vectors * n + static_cast<int>(threadIdx.x); i < end; i += threads) {
    const float value[1] = {to_float(x[i])};
    seen.take(value);
  }
  return all_seen(seen, with_total);
}

template <typename T, int n>
__global__ void stats_kernel(LogitRows rows, const T* logits, LogitStats stats) {
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
  const Seen seen = look_at<T, n>(x, rows.valid, total != nullptr);
  if (threadIdx.x != 0) return;
  const int64_t column = label - rows.first_id;
  max[row] = seen.part.max;
  sum[row] = seen.part.sum;
  target[row] = column >= 0 && column < rows.valid ? to_float(x[column]) : 0;
  if (total != nullptr) total[row] = seen.total;
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

// The gradient of grad · loss with respect to a logit that is not the label's. The sum is in two parts: a logit may be
// near it, and their difference is what counts.
struct Slope {
  float high, low, scale, shift;
  __device__ Slope(double lse, float grad, const LossWeights& weights)
      : high(static_cast<float>(lse)),
        low(static_cast<float>(lse - static_cast<double>(high))),
        scale((1 + 2 * static_cast<float>(weights.z) * high) * grad),
        shift(-static_cast<float>(weights.off_target) * grad) {}
  __device__ float operator()(float value) const { return __expf(value - high - low) * scale + shift; }
};

// Writes the gradient of grad · loss over a row; grad 0: zeros. The caller has passed a barrier since the label's logit
// was read.
template <typename T, int n>
__device__ inline void write_grads(const LogitRows& rows, T* x, int64_t column, double lse, float grad,
                                   const LossWeights& weights, float target) {
  const Slope slope(lse, grad, weights);
  const int threads = static_cast<int>(blockDim.x), vectors = static_cast<int>(rows.valid / n);
  const int columns = static_cast<int>(rows.columns), valid = static_cast<int>(rows.valid);
  if (grad == 0) {
    for (int i = static_cast<int>(threadIdx.x); i < columns; i += threads) x[i] = from_float<T>(0);
    return;
  }
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += threads) {
    float value[n];
    load<n>(x + i * n, value);
#pragma unroll
    for (int j = 0; j < n; ++j) value[j] = slope(value[j]);
    store<n>(value, x + i * n);
  }
  for (int i = vectors * n + static_cast<int>(threadIdx.x); i < columns; i += threads)
    x[i] = from_float<T>(i >= valid ? 0 : slope(to_float(x[i])));
  if (column < 0 || column >= valid) return;
  __syncthreads();
  if (threadIdx.x == 0) x[column] = from_float<T>(slope(target) - static_cast<float>(weights.on_target) * grad);
}

// The label's logit, on every thread; 0 where another rank holds it. Ends with a barrier.
template <typename T>
__device__ inline float target_of(const LogitRows& rows, const T* x, int64_t column) {
  const float target = column >= 0 && column < rows.valid ? to_float(x[column]) : 0;
  __syncthreads();
  return target;
}

template <typename T, int n>
__global__ void grads_kernel(LogitRows rows, T* logits, const double* log_sum_exp, const float* grad_loss,
                             LossWeights weights) {
  const int64_t row = blockIdx.x;
  const int64_t label = rows.labels[row], column = label - rows.first_id;
  const float grad = label == rows.ignore_index ? 0 : grad_loss[row];
  T* x = logits + row * rows.distance;
  const float target = target_of(rows, x, column);
  write_grads<T, n>(rows, x, column, log_sum_exp[row], grad, weights, target);
}

// Both at once, for the whole vocabulary on one rank. The second look at a row finds it in the second-level cache.
template <typename T, int n>
__global__ void __launch_bounds__(kRowThreads)
    losses_and_grads_kernel(LogitRows rows, T* logits, float grad, LossWeights weights, float* loss) {
  __shared__ double shared_lse;
  const int64_t row = blockIdx.x, label = rows.labels[row], column = label - rows.first_id;
  T* x = logits + row * rows.distance;
  if (label == rows.ignore_index) {
    if (threadIdx.x == 0) loss[row] = 0;
    return write_grads<T, n>(rows, x, -1, 0, 0, weights, 0);
  }
  if (column < 0 || column >= rows.valid) refuse_label(rows, row, label);
  const Seen seen = look_at<T, n>(x, rows.valid, weights.off_target != 0);
  const float target = target_of(rows, x, column);
  if (threadIdx.x == 0) {
    const RowLoss result = loss_of(seen.part.max, seen.part.sum, seen.total, target, weights);
    loss[row] = result.loss;
    shared_lse = result.lse;
  }
  __syncthreads();
  write_grads<T, n>(rows, x, column, shared_lse, grad, weights, target);
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
    launch("logit_stats", stats_kernel<T, n>, {static_cast<unsigned>(rows.rows), kThreads, stream}, rows,
           static_cast<const T*>(logits), stats);
  });
}

void losses_cuda(const LogitRows& rows, const LogitStats& stats, const LossWeights& weights, double* log_sum_exp,
                 void* loss, void* stream) {
  if (rows.rows == 0) return;
  const auto blocks = static_cast<unsigned>((rows.rows + 255) / 256);
  launch("losses", losses_kernel, {blocks, 256, stream}, rows, stats, weights, log_sum_exp, static_cast<float*>(loss));
}

void logit_grads_cuda(const LogitRows& rows, void* logits, const double* log_sum_exp, const void* grad_loss,
                      const LossWeights& weights, void* stream) {
  if (rows.rows == 0 || rows.columns == 0) return;
  for_rows(rows, logits, [&]<typename T, int n>() {
    launch("logit_grads", grads_kernel<T, n>, {static_cast<unsigned>(rows.rows), kThreads, stream}, rows,
           static_cast<T*>(logits), log_sum_exp, static_cast<const float*>(grad_loss), weights);
  });
}

void losses_and_grads_cuda(const LogitRows& rows, void* logits, double grad, const LossWeights& weights, void* loss,
                           void* stream) {
  if (rows.rows == 0 || losses_and_grads_clusters_cuda(rows, logits, grad, weights, loss, stream)) return;
  for_rows(rows, logits, [&]<typename T, int n>() {
    const auto kernel = losses_and_grads_kernel<T, n>;
    const int64_t bytes = rows.columns * static_cast<int64_t>(sizeof(T)) * multiprocessors();
    // Shared memory that nobody uses keeps a second block away from a multiprocessor.
    const size_t ballast = 2 * bytes > kCachedBytes ? 120 << 10 : 0;
    allow_shared(kernel, ballast);
    launch("losses_and_grads", kernel, {static_cast<unsigned>(rows.rows), kRowThreads, stream, ballast}, rows,
           static_cast<T*>(logits), static_cast<float>(grad), weights, static_cast<float*>(loss));
  });
}

}  // namespace megalith::ops
