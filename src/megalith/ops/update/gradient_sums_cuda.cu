// Gradients that are sums over tokens, on CUDA. Legend: t tokens, h columns, v elements of 16 bytes.
//
//   bias       sums[c] = Σ_i dy[i][c]. A thread has v columns and every gridDim.y-th row; the partial sums
//              [gridDim.y, h] are added in order by column_sums_cuda. Reads dy once.
//   embedding  sums[rows[i]] += dy[i]. A block has a token (or a part of its columns); tokens with the same id meet in
//              memory, so that additions are atomic: 16 bytes each on sm_90 and later, else 4. Reads dy once, reads and
//              writes the rows of sums that occur. The order of additions to a row is that of the hardware: with
//              full_determinism the caller takes another way.
//
//   embedding, block (token, part):   | thread 0 ... 255 | thread 0 ... 255 |      two vectors of 4 columns per thread;
//                                       16 bytes of sums   next 1024 columns       2048 columns are one block
//
// In bytes per element: bias 2 (bf16), embedding 2 + 8 (fp32 sums, read and written).
//
// Measured on an H200 against a copy of as many bytes (docs/gpu.md): bias 65536 x 3072 0.84, embedding 16384 x 2048 x
// 128256 0.96.
#include "megalith/ops/kernel/cuda_math.cuh"
#include "megalith/ops/update/gradient_sums_internal.h"

namespace megalith::ops {

namespace {

constexpr int kThreads = 128;
constexpr int64_t kMostParts = 512;  // bounds the workspace: at most 512 rows of partial sums

// A thread has v columns and every gridDim.y-th row, four rows in flight. partials: [gridDim.y, h].
template <typename T, int v>
__global__ void bias_grad_kernel(const T* dy, int64_t t, int64_t h, float* partials) {
  const int64_t column = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * v;
  if (column >= h) return;
  float sums[v] = {};
#pragma unroll 4
  for (int64_t row = blockIdx.y; row < t; row += gridDim.y) {
    float value[v];
    load<v>(dy + row * h + column, value);
#pragma unroll
    for (int j = 0; j < v; ++j) sums[j] += value[j];
  }
#pragma unroll
  for (int j = 0; j < v; ++j) partials[blockIdx.y * h + column + j] = sums[j];
}

// Atomic addition of 4 floats or of one. Each float is added on its own; one instruction for four saves three requests
// to the memory system.
__device__ inline void add_to(float* at, const float (&value)[4]) {
#if __CUDA_ARCH__ >= 900
  atomicAdd(reinterpret_cast<float4*>(at), float4{value[0], value[1], value[2], value[3]});
#else
  for (int j = 0; j < 4; ++j) atomicAdd(at + j, value[j]);
#endif
}
__device__ inline void add_to(float* at, const float (&value)[1]) { atomicAdd(at, value[0]); }

// Asks for the cache line of an address without waiting for it.
__device__ inline void prefetch([[maybe_unused]] const float* at) {
#ifdef __CUDACC__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#endif
}

// A block has a part of a token's columns, a thread two vectors of v columns. The vectors of a warp are side by side,
// so that its additions touch whole sectors. v is 4 (16 bytes of sums) or 1. The row of sums, which is seldom in the
// cache, is prefetched while dy is read. Grid: tokens, parts of a row.
constexpr int kMostRowThreads = 256;
template <typename T, int v>
__global__ void __launch_bounds__(kMostRowThreads)
    add_to_rows_kernel(float* sums, const int64_t* rows, const T* dy, int64_t h) {
  constexpr int kVectors = 2;
  const int64_t token = blockIdx.x;
  const int threads = static_cast<int>(blockDim.x);
  const int first = (static_cast<int>(blockIdx.y) * kVectors * threads + static_cast<int>(threadIdx.x)) * v;
  float* const row = sums + rows[token] * h;
  const T* const from = dy + token * h;
#pragma unroll
  for (int j = 0; j < kVectors; ++j)
    if (const int column = first + j * threads * v; column < h) prefetch(row + column);
  Raw<T, v> part[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j)
    if (const int column = first + j * threads * v; column < h) part[j] = load_raw<v>(from + column);
#pragma unroll
  for (int j = 0; j < kVectors; ++j)
    if (const int column = first + j * threads * v; column < h) {
      float value[v];
      unpack<T, v>(part[j], value);
      add_to(row + column, value);
    }
}

// Returns the number of blocks that the columns of a row take.
template <typename T>
int64_t column_blocks(int64_t h, bool in_vectors) {
  const int64_t vectors = in_vectors ? h / kVector<T> : h;
  return (vectors + kThreads - 1) / kThreads;
}

// Returns the number of parts of the rows: 16 blocks per multiprocessor.
int64_t parts_for(int64_t t, int64_t columns) {
  return std::clamp<int64_t>(int64_t{multiprocessors()} * 16 / columns, 1, std::clamp<int64_t>(t, 1, kMostParts));
}

}  // namespace

int64_t bias_grad_workspace_cuda(int64_t t, int64_t h) { return std::min(kMostParts, t) * h; }

void bias_grad_cuda(c10::ScalarType dtype, const void* dy, int64_t t, int64_t h, float* sums, bool add,
                    float* workspace, void* stream) {
  if (h == 0) return;
  int64_t parts = 0;
  for_dtype(dtype, [&]<typename T>(T) {
    if (t == 0) return;
    const bool fits = aligned(dy) && h % kVector<T> == 0;
    const int64_t columns = column_blocks<T>(h, fits);
    parts = parts_for(t, columns);
    const dim3 blocks(static_cast<unsigned>(columns), static_cast<unsigned>(parts));
    const auto run = [&](auto kernel) {
      launch("bias_grad", kernel, {blocks, kThreads, stream}, static_cast<const T*>(dy), t, h, workspace);
    };
    if (fits)
      run(bias_grad_kernel<T, kVector<T>>);
    else
      run(bias_grad_kernel<T, 1>);
  });
  column_sums_cuda(workspace, parts, {sums, c10::ScalarType::Float, h, add}, {}, stream);
}

void add_to_rows_cuda(c10::ScalarType dtype, float* sums, const int64_t* rows, const void* dy, int64_t t, int64_t h,
                      void* stream) {
  if (t * h == 0) return;
  for_dtype(dtype, [&]<typename T>(T) {
    const auto run = [&]<int v>() {
      constexpr int64_t kMost = 2 * v * kMostRowThreads;  // columns per block
      // Rows are cut into as few parts as possible, and the parts get equal numbers of warps.
      const int64_t parts = (h + kMost - 1) / kMost, warp = 2 * v * 32 * parts;
      const auto threads = static_cast<unsigned>((h + warp - 1) / warp * 32);
      const dim3 blocks(static_cast<unsigned>(t), static_cast<unsigned>(parts));
      launch("add_to_rows", add_to_rows_kernel<T, v>, {blocks, threads, stream}, sums, rows, static_cast<const T*>(dy),
             h);
    };
    if (h % 4 == 0 && aligned(dy) && aligned(sums))
      run.template operator()<4>();
    else
      run.template operator()<1>();
  });
}

}  // namespace megalith::ops
