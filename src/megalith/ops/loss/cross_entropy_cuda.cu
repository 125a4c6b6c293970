// Cross-entropy on CUDA, one block per row. Legend: t rows, v valid columns on this rank, n elements of 16 bytes.
//
// Thread i of a block has vectors i, i + blockDim.x, ... of its row. Statistics are taken in one read (online softmax):
// a thread keeps a running maximum m and Σ exp(x - m), and rescales the sum when the maximum grows; lanes, then warps,
// merge their pairs (m, s) the same way.
//
//   stats    m, Σ exp(x - m), x[label], Σ x of a row          reads t·v logits
//   losses   one thread per row, fp64
//   grads    x = g ((1 + 2 z lse) exp(x - lse) - off_target) [- g·on_target at the label], in place: reads and writes
//            t·v logits
//   both     stats, loss and grads of a row by one block: the second read of a row hits the second-level cache. For
//            rows that clusters of blocks cannot take (cross_entropy_clusters_cuda.cu).
//
//   row          | vector 0 | 1 | 2 | ... | 511 | 512 | ...       512 threads, 16 bytes each: 8 KiB per step of a block
//   thread         0          1   2         511   0
//   merge          thread (m, s) -> 5 shuffles -> warp -> shared memory -> 5 shuffles -> every thread of the block
//
// In bytes per logit of bf16: stats 2, grads 4, both 4 plus 2 from the cache. Measured on an H200 against a copy of as
// many bytes (docs/gpu.md), 4096 x 128256: stats and losses 0.83, grads 0.92.
#include <cmath>

#include "megalith/ops/loss/cross_entropy_cuda.cuh"

namespace megalith::ops {

namespace {

constexpr int kThreads = 512;
constexpr int kRowThreads = 1024;  // kernels that read a row twice: often only one block runs per multiprocessor
// Most bytes of rows that can be expected to stay in the second-level cache until they are read again: two thirds of
// the 50 MB of an H200.
constexpr int64_t kCachedBytes = int64_t{32} << 20;

// Σ exp(x - max), with its max.
struct Part {
  float max, sum;
};
// Brings both sums to the larger maximum. Two empty parts stay empty: -inf - -inf would be NaN.
__device__ inline Part merge(Part a, Part b) {
  const float max = fmaxf(a.max, b.max);
  if (max == -INFINITY) return {max, 0};
  return {max, a.sum * __expf(a.max - max) + b.sum * __expf(b.max - max)};
}

// Statistics of the part of a row that a thread, or then a block, has read.
struct Seen {
  Part part{-INFINITY, 0};
  float total = 0;

  // Adds m logits. Their maximum comes first, so that the sum is rescaled at most once per vector.
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

// Merges the statistics of all threads of the block; every thread gets them. The total is summed only on request.
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
  // Every warp merges the parts of all warps itself, which saves the barrier of a broadcast.
  mine = lane < static_cast<int>(blockDim.x) / 32 ? parts[lane] : Part{-INFINITY, 0};
#pragma unroll
  for (int other = 16; other > 0; other /= 2)
    mine = merge(mine, {__shfl_xor_sync(0xffffffffU, mine.max, other), __shfl_xor_sync(0xffffffffU, mine.sum, other)});
  return seen;
}

// Returns the statistics of x [valid] on every thread. Columns after the last whole vector go element by element.
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

// One block per row. Ignored rows are not read.
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

// One thread per row, after the statistics have been reduced over ranks (the maximum first, then the sums relative to
// it). The arithmetic is that of loss_of(), in fp64 throughout.
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

// The gradient of grad · loss with respect to a logit other than the label's. log Σ exp is held in two floats: logits
// may be near it, and their difference must keep its digits.
struct Slope {
  float high, low, scale, shift;
  __device__ Slope(double lse, float grad, const LossWeights& weights)
      : high(static_cast<float>(lse)),
        low(static_cast<float>(lse - static_cast<double>(high))),
        scale((1 + 2 * static_cast<float>(weights.z) * high) * grad),
        shift(-static_cast<float>(weights.off_target) * grad) {}
  __device__ float operator()(float value) const { return __expf(value - high - low) * scale + shift; }
};

// Overwrites a row with the gradient of grad · loss, or with zeros for grad = 0. Since the label's logit `target` is
// overwritten, too, the caller must have passed a barrier after reading it.
template <typename T, int n>
__device__ inline void write_grads(const LogitRows& rows, T* x, int64_t column, double lse, float grad,
                                   const LossWeights& weights, float target) {
  // Three stretches of a row: whole vectors, the columns after them, and padding, whose gradient is 0.
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

// Returns the label's logit on every thread, 0 if another rank holds it. Ends with a barrier.
template <typename T>
__device__ inline float target_of(const LogitRows& rows, const T* x, int64_t column) {
  const float target = column >= 0 && column < rows.valid ? to_float(x[column]) : 0;
  __syncthreads();
  return target;
}

// One block per row: the second half of the vocabulary-parallel loss, after log Σ exp was reduced over ranks.
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

// Losses and gradients at once, for the whole vocabulary on one rank. The second read of a row finds it in the
// second-level cache.
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

// Calls run.template operator()<T, n>(), with single elements (n = 1) where rows are not aligned to 16 bytes.
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
    // With two blocks per multiprocessor, the rows being worked on might not fit the second-level cache. Shared memory
    // that nobody uses then keeps the second block away: twice 120 KiB is more than the 228 KiB of an sm_90.
    const size_t ballast = 2 * bytes > kCachedBytes ? 120 << 10 : 0;
    allow_shared(kernel, ballast);
    launch("losses_and_grads", kernel, {static_cast<unsigned>(rows.rows), kRowThreads, stream, ballast}, rows,
           static_cast<T*>(logits), static_cast<float>(grad), weights, static_cast<float*>(loss));
  });
}

}  // namespace megalith::ops
