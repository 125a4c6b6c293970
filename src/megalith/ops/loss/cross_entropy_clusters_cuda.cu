// Losses and gradients of rows at once, one cluster of blocks per row, for devices that have clusters (sm_90 and later)
// and rows that fit their shared memory. Legend: t rows, v valid columns on this rank, n elements of 16 bytes.
//
// Who owns what: a row of v logits is cut into 2, 4 or 8 contiguous parts, one per block of its cluster; thread i of a
// block has vectors i, i + threads, ... of the part:
//
//   row       | block 0          | block 1          | ... |      at most 64 KiB each where possible: three blocks of
//   thread     0 1 2 ... 0 1 2 ...                               different rows share a multiprocessor
//
// 1. Every thread reads its vectors, stores them in shared memory and adds up powers of two (struct Powers).
// 2. Sums and reaches of all warps are exchanged through distributed shared memory, one cluster barrier.
// 3. Every thread reads its own vectors back from shared memory and writes their gradients. The thread with the label's
//    vector corrects that vector and writes the loss.
//
//   thread -> warp -> cluster:
//   (reach, sum)   5 shuffles   each warp writes its entry to every block   one barrier   every warp merges all entries
//
// Example: a row of 128256 in bf16 is 250 KiB, 4 blocks of 62.6 KiB with 512 threads each.
//
// So each logit is read once and written once: 2 t v elements of memory traffic. While one cluster writes, others on
// the same multiprocessor read. Measured on an H200 against a copy of as many bytes (docs/gpu.md): 4096 x 128256 0.89.
#include <cooperative_groups.h>

#include <utility>

#include "megalith/ops/loss/cross_entropy_cuda.cuh"

namespace megalith::ops {

namespace {

// Returns 2^x, accurate to two units in the last place; 0 where it would be denormal. (exp2f and __expf handle those,
// too, for three more instructions.)
[[maybe_unused]] __device__ inline float power_of_two(float x) {
#ifdef __CUDACC__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else  // tests/cuda_emulation
  return emulated_power_of_two(x);
#endif
}

template <typename T>
using Vector = Raw<T, kVector<T>>;
// A vector of -inf for places past the end of a row: exp(-inf) adds nothing to a sum.
template <typename T>
__device__ inline Vector<T> no_vector() {
  constexpr uint32_t kTwo = std::is_same_v<T, __half> ? 0xfc00fc00U : 0xff80ff80U;
  constexpr uint32_t kWord = std::is_same_v<T, float> ? 0xff800000U : kTwo;
  return {{kWord, kWord, kWord, kWord}};
}

// Element-wise maximum of two words; two 16-bit elements at once. The maximum needs no conversion to fp32: 16-bit
// numbers compare exactly in their own type.
template <typename T>
__device__ inline uint32_t larger(uint32_t a, uint32_t b) {
  if constexpr (std::is_same_v<T, float>) {
    return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
  } else {
    std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162> x, y;
    memcpy(&x, &a, sizeof(a));
    memcpy(&y, &b, sizeof(b));
    x = __hmax2(x, y);
    memcpy(&a, &x, sizeof(a));
    return a;
  }
}

// Σ exp(x) as 2^reach · Σ 2^exponent, with exponent = x log2(e) - reach and an integer reach of at least the largest
// x log2(e), so that no power overflows. An element costs a multiply-add, a power and an addition; rescaling a sum to
// another reach is exact; and the gradient of a logit is its power over the sum, without a logarithm. Valid for logits
// up to 1e7: beyond, x log2(e) is not exact to 1.
template <typename T>
struct Powers {
  static constexpr float kLog2e = 1.44269502F, kRest = 1.92596299e-8F;  // together log2(e)
  static constexpr double kLn2 = 0.69314718055994530942;

  float reach = -0x1p31F, sum = 0;
  float total = 0;  // Σ logit, for label smoothing

  // exp(x) = 2^(exponent + reach). The low part of log2(e) matters only for logits in fp32.
  static __device__ float exponent(float x, float reach) {
    const float most = fmaf(x, kLog2e, -reach);
    return std::is_same_v<T, float> ? fmaf(x, kRest, most) : most;
  }
  // Adds m vectors. Their maximum is found first, in their own type, so that the reach changes at most once.
  template <int m>
  __device__ void take(const Vector<T> (&vector)[m]) {
    constexpr int n = kVector<T>, kEach = 4 / static_cast<int>(sizeof(T));
    uint32_t top = vector[0].word[0];
#pragma unroll
    for (int i = 1; i < 4 * m; ++i) top = larger<T>(top, vector[i / 4].word[i % 4]);
    float largest[kEach];
    split(top, static_cast<const T*>(nullptr), largest);
    reach_for(ceilf(fmaxf(largest[0], largest[kEach - 1]) * kLog2e));
    float sums[2] = {};  // two chains of additions
#pragma unroll
    for (int u = 0; u < m; ++u) {
      float value[n];
      unpack<T, n>(vector[u], value);
#pragma unroll
      for (int j = 0; j < n; ++j) sums[j % 2] += power_of_two(exponent(value[j], reach));
    }
    sum += sums[0] + sums[1];
  }
  // Raises the reach to at least `least`.
  __device__ void reach_for(float least) {
    if (!(least > reach)) return;
    sum *= power_of_two(reach - least);
    reach = least;
  }
  // Merges the lanes of a warp; every lane gets the result.
  __device__ Powers of_warp(bool with_total) const {
    const auto top = static_cast<float>(__reduce_max_sync(0xffffffffU, __float2int_rz(reach)));
    return {top, warp_sum(sum * power_of_two(reach - top)), with_total ? warp_sum(total) : 0};
  }
};

// Returns the sum of the elements of a vector, in fp32; for label smoothing only.
template <typename T>
__device__ inline float sum_of(const Vector<T>& vector) {
  float value[kVector<T>], sum = 0;
  unpack<T, kVector<T>>(vector, value);
#pragma unroll
  for (const float x : value) sum += x;
  return sum;
}

// Merges the powers of all threads of a cluster of `blocks` blocks; every thread gets the result. Each warp writes its
// entry into the shared memory of every block (lane b into that of block b); after one cluster barrier every warp
// merges all entries itself.
template <typename T, typename Cluster>
__device__ inline Powers<T> of_cluster(const Powers<T>& mine, const Cluster& cluster, int blocks, bool with_total) {
  __shared__ float4 entries[64];  // 4 blocks of 16 warps, or 8 of 8
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int block = static_cast<int>(cluster.block_rank()), warps = static_cast<int>(blockDim.x) / 32;
  const Powers<T> part = mine.of_warp(with_total);
  if (lane < blocks)
    *cluster.map_shared_rank(&entries[block * warps + warp], lane) = {part.reach, part.sum, part.total, 0};
  cluster.sync();
  Powers<T> all;
#pragma unroll 1  // one or two of them
  for (int i = lane; i < blocks * warps; i += 32) {
    const float4 other = entries[i];
    all.reach_for(other.x);
    all.sum += other.y * power_of_two(other.x - all.reach);
    all.total += other.z;
  }
  return all.of_warp(with_total);
}

// Slope of cross_entropy_cuda.cu in terms of powers: exp(x - lse) = 2^exponent / sum. An element costs a multiply-add,
// a power and another multiply-add; the division by the sum is part of `scale`, once per thread.
template <typename T>
struct PowerSlope {
  float reach, scale, shift;
  __device__ PowerSlope(const Powers<T>& row, float grad, const LossWeights& weights)
      : reach(row.reach), scale(grad / row.sum), shift(-static_cast<float>(weights.off_target) * grad) {
    const auto z = static_cast<float>(weights.z);
    if (z != 0) scale *= 1 + 2 * z * (row.reach * static_cast<float>(Powers<T>::kLn2) + logf(row.sum));
  }
  __device__ void operator()(float (&value)[kVector<T>]) const {
#pragma unroll
    for (float& x : value) x = fmaf(power_of_two(Powers<T>::exponent(x, reach)), scale, shift);
  }
};

// A thread reads the same vectors in both passes, so that the only barrier is that of the cluster. Registers are
// limited so that kClusterBlocks blocks of kMostClusterThreads threads could share a multiprocessor.
constexpr int kMostClusterThreads = 512, kClusterBlocks = 4;
template <typename T>
__global__ void __launch_bounds__(kMostClusterThreads, kClusterBlocks)
    cluster_kernel(LogitRows rows, T* logits, float grad, LossWeights weights, float* loss, int blocks) {
#if __CUDA_ARCH__ >= 900
  constexpr int n = kVector<T>;
  auto* const kept = dynamic_shared<Vector<T>>();  // this block's part of the row
  const auto cluster = cooperative_groups::this_cluster();
  const int block = static_cast<int>(cluster.block_rank()), thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int64_t row = blockIdx.x / static_cast<unsigned>(blocks);
  const int64_t label = rows.labels[row], column = label - rows.first_id;
  T* x = logits + row * rows.distance;
  const int vectors = static_cast<int>(rows.valid / n), each = (vectors + blocks - 1) / blocks;
  const int first = min(block * each, vectors), count = min(each, vectors - first);
  // Vectors, not elements: the compiler splits stores through a T* into words.
  auto* const own_vectors = reinterpret_cast<Vector<T>*>(x) + first;
  // Padding columns after the last vector get a gradient of zero.
  if (block == blocks - 1)
    for (int i = vectors * n + thread; i < static_cast<int>(rows.columns); i += threads) x[i] = from_float<T>(0);
  if (label == rows.ignore_index) {
    const float zeros[n] = {};
    for (int i = thread; i < count; i += threads) own_vectors[i] = pack<T, n>(zeros);
    if (block == 0 && thread == 0) loss[row] = 0;
    return;
  }
  if (column < 0 || column >= rows.valid) refuse_label(rows, row, label);
  auto started = cluster.barrier_arrive();  // waited for only before the first write to another block
  Powers<T> seen;
  constexpr int kAtOnce = 4;  // loads in flight
  for (int i = thread; i < count; i += kAtOnce * threads) {
    Vector<T> vector[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int at = i + u * threads;
      vector[u] = at < count ? own_vectors[at] : no_vector<T>();
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u)
      if (i + u * threads < count) kept[i + u * threads] = vector[u];
    seen.take(vector);
  }
  const bool with_total = weights.off_target != 0;
  // Label smoothing needs Σ logit: a second look at shared memory, which the usual loss does not pay for.
  if (with_total)
    for (int i = thread; i < count; i += threads) seen.total += sum_of<T>(kept[i]);
  cluster.barrier_wait(std::move(started));  // all blocks have started and can be written to
  const Powers<T> all = of_cluster(seen, cluster, blocks, with_total);
  const PowerSlope<T> slope(all, grad, weights);
#pragma unroll 4
  for (int i = thread; i < count; i += threads) {
    float value[n];
    unpack<T, n>(kept[i], value);
    slope(value);
    own_vectors[i] = pack<T, n>(value);
  }
  // The thread that has the label's vector has just written it; it writes the vector again, corrected, and the loss.
  const int64_t here = column - int64_t{first} * n;
  const int at = static_cast<int>(here / n), element = static_cast<int>(here % n);
  if (here < 0 || at >= count || at % threads != thread) return;
  float value[n], target = 0;
  unpack<T, n>(kept[at], value);
#pragma unroll
  for (int j = 0; j < n; ++j) target = j == element ? value[j] : target;
  slope(value);
#pragma unroll
  for (int j = 0; j < n; ++j) value[j] -= j == element ? static_cast<float>(weights.on_target) * grad : 0;
  own_vectors[at] = pack<T, n>(value);
  loss[row] = loss_of(all.reach * Powers<T>::kLn2, all.sum, all.total, target, weights).loss;
#endif
}

// How a row is cut; blocks = 0 means that clusters cannot take it.
struct ClusterSize {
  int blocks = 0, threads = 0;  // blocks per cluster, threads per block
  int64_t bytes = 0;            // a block's part of the row, in its shared memory
};
// Returns the smallest cluster whose blocks get at most kWanted bytes each, or one of 8. Shorter rows than kLeast are
// left to one block per row; with kMost, 96 KiB per block, two blocks still share a multiprocessor.
template <typename T>
ClusterSize cluster_size(const LogitRows& rows) {
  constexpr int64_t kLeast = 16 << 10, kMost = 768 << 10;  // bytes of a row
  constexpr int64_t kWanted = 64 << 10;                    // bytes per block: three blocks fit a multiprocessor
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  const int64_t vectors = rows.valid / kVector<T>;
  if (major < 9 || rows.valid % kVector<T> != 0 || vectors * 16 < kLeast || vectors * 16 > kMost) return {};
  const auto bytes = [&](int blocks) { return (vectors + blocks - 1) / blocks * 16; };
  if (bytes(2) <= kWanted) return {2, 512, bytes(2)};
  if (bytes(4) <= kWanted) return {4, 512, bytes(4)};
  return {8, 256, bytes(8)};
}

// Starts the kernel with its cluster size as a launch attribute, since the size is chosen at run time.
template <typename T>
void launch_clusters(const LogitRows& rows, T* logits, float grad, const LossWeights& weights, float* loss,
                     const ClusterSize& size, void* stream) {
  const auto kernel = cluster_kernel<T>;
  allow_shared(kernel, static_cast<size_t>(size.bytes));
  const auto blocks = static_cast<unsigned>(size.blocks);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {blocks, 1, 1};
  const cudaLaunchConfig_t config{dim3(static_cast<unsigned>(rows.rows) * blocks),
                                  dim3(static_cast<unsigned>(size.threads)),
                                  static_cast<size_t>(size.bytes),
                                  static_cast<cudaStream_t>(stream),
                                  &attribute,
                                  1};
  cudaLaunchKernelEx(&config, kernel, rows, logits, grad, weights, loss, size.blocks);
  check_launch("losses_and_grads of clusters");
}

}  // namespace

bool losses_and_grads_clusters_cuda(const LogitRows& rows, void* logits, double grad, const LossWeights& weights,
                                    void* loss, void* stream) {
  bool done = false;
  for_dtype(rows.dtype, [&]<typename T>(T) {
    if (!aligned(logits) || rows.distance % kVector<T> != 0) return;
    const ClusterSize size = cluster_size<T>(rows);
    if (size.blocks == 0) return;
    launch_clusters(rows, static_cast<T*>(logits), static_cast<float>(grad), weights, static_cast<float*>(loss), size,
                    stream);
    done = true;
  });
  return done;
}

}  // namespace megalith::ops
