// Copies and weighted sums of rows, and the stable sort of choices by expert, on CUDA. Legend: t tokens, k copies per
// token, r rows, h hidden, v elements of 16 bytes.
//
// Who owns what: a block has one token (copy_kernel: one row), a thread v columns and every blockDim.x-th vector after
// them. Since the map knows the rows of a token, nothing is added atomically, and sums have a fixed order.
//
//   copy       y[n] = x[token[n]]                                     reads and writes r h elements
//   spread     y[row[i][j]] = x[i]                                    reads t h, writes r h
//   sum        y[i] = residual[i] + Σ_j w[i][j] rows[row[i][j]]       reads r h (+ t h), writes t h
//   backward   drows[row[i][j]] = w[i][j] dy[i],  dw[i][j] = dy[i] · rows[row[i][j]]     reads r h + t h, writes r h
//
//   token i      x[i]  ──┬─> y[row[i][0]]      rows are contiguous: a block reads and writes whole cache lines,
//                        ├─> y[row[i][1]]      however scattered the rows are
//                        └─> ...
//
// Measured on an H200 against a copy of as many bytes (docs/gpu.md), 16384 x 8 x 2048: copies 0.88 and their backward
// 0.94, weighted sums 0.94 both ways.
#include "megalith/ops/kernel/cuda_math.cuh"
#include "megalith/ops/moe/permute_internal.h"

namespace megalith::ops {

namespace {

constexpr int kThreads = 256;
constexpr int kMostCopies = 64;  // copies per token whose dot products a block can keep

// One block per row, fillers included. Bits are moved as they are, 16 bytes per thread. Reads a token k times (mostly
// from the cache), and is used only where fillers exist, which spread_kernel would leave unwritten.
template <typename T, int v>
__global__ void copy_kernel(const T* x, const int64_t* token, T* y, int64_t h) {
  const T* from = x + token[blockIdx.x] * h;
  T* to = y + int64_t{blockIdx.x} * h;
  for (int64_t column = int64_t{threadIdx.x} * v; column < h; column += int64_t{blockDim.x} * v)
    *reinterpret_cast<Pack<T, v>*>(to + column) = *reinterpret_cast<const Pack<T, v>*>(from + column);
}

// One block per token, which is read once and written to all of its rows. Backward of sums without weights is the same
// kernel; backward of copies is sum_kernel.
template <typename T, int v>
__global__ void spread_kernel(const T* x, const int64_t* row, T* y, int64_t k, int64_t h) {
  const int64_t token = blockIdx.x;
  for (int64_t column = int64_t{threadIdx.x} * v; column < h; column += int64_t{blockDim.x} * v) {
    const auto part = *reinterpret_cast<const Pack<T, v>*>(x + token * h + column);
    for (int64_t j = 0; j < k; ++j) {
      const int64_t target = row[token * k + j];
      if (target >= 0) *reinterpret_cast<Pack<T, v>*>(y + target * h + column) = part;
    }
  }
}

// One block per token; the loop over its copies is unrolled, so that four rows are in flight. Sums are fp32 and rounded
// once, in the order of j: results do not depend on timing.
template <typename T, int v>
__global__ void sum_kernel(const T* rows, const float* w, const int64_t* row, const T* residual, T* y, int64_t k,
                           int64_t h) {
  const int64_t token = blockIdx.x;
  for (int64_t column = int64_t{threadIdx.x} * v; column < h; column += int64_t{blockDim.x} * v) {
    float sum[v] = {};
    if (residual != nullptr) load<v>(residual + token * h + column, sum);
#pragma unroll 4
    for (int64_t j = 0; j < k; ++j) {
      const int64_t source = row[token * k + j];
      if (source < 0) continue;
      const float factor = w == nullptr ? 1 : w[token * k + j];
      float value[v];
      load<v>(rows + source * h + column, value);
#pragma unroll
      for (int c = 0; c < v; ++c) sum[c] += factor * value[c];
    }
    store<v>(sum, y + token * h + column);
  }
}

constexpr int kTogether = 4;  // copies whose rows are read at once: 4 · v floats of registers

// One block per token. For every four copies the token's gradient is read once (from the cache after the first four).
// The dot products are summed per warp by shuffles, then over the warps in order, one thread per copy.
template <typename T, int v>
__global__ void sum_backward_kernel(const T* rows, const float* w, const int64_t* row, const T* dy, T* drows, float* dw,
                                    int64_t k, int64_t h) {
  __shared__ float dots[kMostCopies][kThreads / 32];
  const int64_t token = blockIdx.x;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int64_t first = 0; first < k; first += kTogether) {
    // Copies past the k-th, and tokens that have fewer, get row -1: they load and store nothing.
    int64_t target[kTogether];
    float factor[kTogether], dot[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const bool there = first + j < k;
      target[j] = there ? row[token * k + first + j] : -1;
      factor[j] = there ? w[token * k + first + j] : 0;
      dot[j] = 0;
    }
    for (int64_t column = int64_t{threadIdx.x} * v; column < h; column += int64_t{blockDim.x} * v) {
      float grad[v], value[kTogether][v];
      load<v>(dy + token * h + column, grad);
#pragma unroll
      for (int j = 0; j < kTogether; ++j)
        if (target[j] >= 0) load<v>(rows + target[j] * h + column, value[j]);
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if (target[j] < 0) continue;
#pragma unroll
        for (int c = 0; c < v; ++c) {
          dot[j] += grad[c] * value[j][c];
          value[j][c] = grad[c] * factor[j];
        }
        store<v>(value[j], drows + target[j] * h + column);
      }
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const float sum = warp_sum(dot[j]);
      if (lane == 0 && first + j < k) dots[first + j][warp] = sum;
    }
  }
  // `dots` is [copies, warps].
  __syncthreads();
  if (threadIdx.x >= k) return;
  float total = 0;
  for (int i = 0; i < static_cast<int>(blockDim.x) / 32; ++i) total += dots[threadIdx.x][i];
  dw[token * k + threadIdx.x] = total;
}

// Calls run.template operator()<T, v>(threads): as many threads as a row has vectors, from 64 to kThreads. A row of
// 2048 bf16 is 256 vectors: one per thread.
template <typename Run>
void for_rows(const PermuteSizes& sizes, bool in_vectors, const Run& run) {
  for_dtype(sizes.dtype, [&]<typename T>(T) {
    const auto with_vector = [&]<int v>() {
      const int64_t wanted = (sizes.h / v + 31) / 32 * 32;
      run.template operator()<T, v>(static_cast<unsigned>(std::clamp<int64_t>(wanted, 64, kThreads)));
    };
    if (in_vectors && sizes.h % kVector<T> == 0)
      with_vector.template operator()<kVector<T>>();
    else
      with_vector.template operator()<1>();
  });
}

}  // namespace

void copy_rows_cuda(const PermuteSizes& sizes, const void* x, const int64_t* token, void* y, void* stream) {
  if (sizes.r * sizes.h == 0) return;
  for_rows(sizes, aligned(x) && aligned(y), [&]<typename T, int v>(unsigned threads) {
    launch("copy_rows", copy_kernel<T, v>, {static_cast<unsigned>(sizes.r), threads, stream}, static_cast<const T*>(x),
           token, static_cast<T*>(y), sizes.h);
  });
}

void spread_rows_cuda(const PermuteSizes& sizes, const void* x, const int64_t* row, void* y, void* stream) {
  if (sizes.t * sizes.h == 0) return;
  for_rows(sizes, aligned(x) && aligned(y), [&]<typename T, int v>(unsigned threads) {
    launch("spread_rows", spread_kernel<T, v>, {static_cast<unsigned>(sizes.t), threads, stream},
           static_cast<const T*>(x), row, static_cast<T*>(y), sizes.k, sizes.h);
  });
}

void sum_rows_cuda(const PermuteSizes& sizes, const void* rows, const void* w, const int64_t* row, const void* residual,
                   void* y, void* stream) {
  if (sizes.t * sizes.h == 0) return;
  const bool fits = aligned(rows) && aligned(residual) && aligned(y);
  for_rows(sizes, fits, [&]<typename T, int v>(unsigned threads) {
    launch("sum_rows", sum_kernel<T, v>, {static_cast<unsigned>(sizes.t), threads, stream}, static_cast<const T*>(rows),
           static_cast<const float*>(w), row, static_cast<const T*>(residual), static_cast<T*>(y), sizes.k, sizes.h);
  });
}

void sum_rows_backward_cuda(const PermuteSizes& sizes, const void* rows, const void* w, const int64_t* row,
                            const void* dy, void* drows, void* dw, void* stream) {
  if (sizes.t * sizes.k == 0) return;
  if (sizes.k > kMostCopies) fail_kernel("sum_rows_backward", "a token has more than 64 copies");
  const bool fits = aligned(rows) && aligned(dy) && aligned(drows);
  for_rows(sizes, fits, [&]<typename T, int v>(unsigned threads) {
    launch("sum_rows_backward", sum_backward_kernel<T, v>, {static_cast<unsigned>(sizes.t), threads, stream},
           static_cast<const T*>(rows), static_cast<const float*>(w), row, static_cast<const T*>(dy),
           static_cast<T*>(drows), static_cast<float*>(dw), sizes.k, sizes.h);
  });
}

namespace {

// Sorts choices by expert, stably. Example with E = 2, k = 1, parts of 2 choices:
//
//   chosen   1 0 | 0 1       count_kernel   part 0: {1, 1}, part 1: {1, 1}
//                            add_up_kernel  starts of part 0: {0, 0}, of part 1: {1, 1};  first = {0, 2, 4}
//   row      2 0   1 3       place_kernel   row = first[expert] + start of the part + number within the part
//   token    1 2 0 3
//
// A counting sort in three launches: each block counts the experts of kPart choices; one block turns the counts into
// starts, over parts and over experts; each block places its choices. Choices of an expert keep their order, whatever
// the timing, and no launch depends on the number of rows per expert: the host need not know it.
constexpr int kPart = 1024;  // choices per block: 4 KiB of shared memory in place_kernel

// Returns the number of parts of n choices.
int64_t parts_of(int64_t n) { return (n + kPart - 1) / kPart; }

// Writes counts [parts, experts]. The atomic additions are on integers in shared memory: their order does not matter.
__global__ void count_kernel(const int64_t* chosen, int64_t n, int experts, int* counts) {
  __shared__ int mine[kMostSortedExperts];
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads) mine[e] = 0;
  __syncthreads();
  const int64_t begin = int64_t{blockIdx.x} * kPart;
  for (int64_t i = begin + threadIdx.x; i < min(begin + kPart, n); i += kThreads) atomicAdd(mine + chosen[i], 1);
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads)
    counts[int64_t{blockIdx.x} * experts + e] = mine[e];
}

// Turns counts into the start of each part among the rows of its expert, and writes first [experts + 1]. One block, one
// thread per expert: it goes through the parts, then the block makes prefix sums over experts (Hillis and Steele).
__global__ void __launch_bounds__(kMostSortedExperts)
    add_up_kernel(int* counts, int parts, int experts, int64_t* first) {
  __shared__ int sums[kMostSortedExperts];
  const int e = static_cast<int>(threadIdx.x);
  int sum = 0;
  constexpr int kAtOnce = 8;  // loads in flight
  for (int part = 0; part < parts && e < experts; part += kAtOnce) {
    int here[kAtOnce];
    int* at = counts + int64_t{part} * experts + e;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) here[i] = part + i < parts ? at[i * experts] : 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (part + i < parts) at[i * experts] = sum;
      sum += here[i];
    }
  }
  sums[e] = sum;
  for (int step = 1; step < static_cast<int>(blockDim.x); step *= 2) {
    __syncthreads();
    const int before = e >= step ? sums[e - step] : 0;
    __syncthreads();
    sums[e] += before;
  }
  if (e < experts) first[e + 1] = sums[e];
  if (e == 0) first[0] = 0;
}

// One block per part, one thread per expert, which scans the choices of the part in shared memory (all threads read the
// same word: a broadcast) and numbers its own in order.
__global__ void place_kernel(const int64_t* chosen, int64_t n, int k, int experts, const int* counts,
                             const int64_t* first, int64_t* token, int64_t* row) {
  __shared__ int mine[kPart];
  const int64_t begin = int64_t{blockIdx.x} * kPart;
  const int length = static_cast<int>(min(int64_t{kPart}, n - begin));
  for (int i = static_cast<int>(threadIdx.x); i < length; i += kThreads) mine[i] = static_cast<int>(chosen[begin + i]);
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads) {
    int64_t next = first[e] + counts[int64_t{blockIdx.x} * experts + e];
    for (int i = 0; i < length; ++i) {
      if (mine[i] != e) continue;
      row[begin + i] = next;
      token[next++] = (begin + i) / k;
    }
  }
}

}  // namespace

int64_t sort_choices_workspace_cuda(int64_t n, int64_t experts) { return parts_of(n) * experts; }

void sort_choices_cuda(const int64_t* chosen, int64_t n, int64_t k, int64_t experts, int64_t* token, int64_t* row,
                       int64_t* first, int* workspace, void* stream) {
  if (n == 0) return;
  const auto parts = static_cast<unsigned>(parts_of(n));
  const int count = static_cast<int>(experts);
  const auto threads = static_cast<unsigned>((count + 31) / 32 * 32);
  launch("count_choices", count_kernel, {parts, kThreads, stream}, chosen, n, count, workspace);
  launch("add_up_choices", add_up_kernel, {1, threads, stream}, workspace, static_cast<int>(parts), count, first);
  launch("place_choices", place_kernel, {parts, kThreads, stream}, chosen, n, static_cast<int>(k), count, workspace,
         first, token, row);
}

}  // namespace megalith::ops
