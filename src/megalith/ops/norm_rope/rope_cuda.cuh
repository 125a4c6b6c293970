// Device functions shared by rope_cuda.cu and head_norms_cuda.cu. Legend: t tokens, d head size, v elements of 16
// bytes.
//
// In both files a few neighboring lanes share a head. A lane owns the same v channels of both halves of the head, so
// that the two elements that rotate together are in one thread:
//
//   head      | low half: v v v v ... | high half: v v v v ... |       d channels
//   lane          0 1 2 3                   0 1 2 3
#pragma once

#include "megalith/ops/kernel/cuda_math.cuh"
#include "megalith/ops/norm_rope/rope_internal.h"

namespace megalith::ops {

// Groups of heads that one launch handles. It is passed by value, so that a thread reads it from constant memory.
struct Groups {
  HeadGroup group[3];
  int count = 0;
  int heads = 0;  // heads per token in all groups together
};

// Returns the group that contains a token's head number `head`, and makes `head` its number within the group. At most
// two steps; the lanes of a head take the same ones.
__device__ inline const HeadGroup& find_group(const Groups& groups, int& head) {
  int g = 0;
  while (head >= groups.group[g].heads) head -= static_cast<int>(groups.group[g++].heads);
  return groups.group[g];
}

// Return the first channel of a head of a token, for reading and for writing. A head's d channels are contiguous; heads
// and tokens are as far apart as the strides say, since q, k and v are often parts of one tensor.
template <typename T>
__device__ inline const T* head_of(const HeadsIn& in, int64_t token, int head) {
  return static_cast<const T*>(in.data) + token * in.token_stride + head * in.head_stride;
}
template <typename T>
__device__ inline T* head_of(const HeadsOut& out, int64_t token, int head) {
  return static_cast<T*>(out.data) + token * out.token_stride + head * out.head_stride;
}

// Sums x over the `lanes` (a power of two) neighboring lanes that share a head. All 32 lanes must call it.
__device__ inline float lanes_sum(float x, int lanes) {
#pragma unroll
  for (int lane = lanes / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffU, x, lane);
  return x;
}

// Cosines and sines of v pairs of channels; all heads of a token share them.
template <int v>
struct Angles {
  float cosine[v], sine[v];
};

// Returns the angles of v pairs of channels, from `channel` on.
template <int v>
__device__ inline Angles<v> angles_of(const Rotation& rotation, int64_t token, int channel) {
  const int64_t at = token * rotation.half + channel;
  Angles<v> angles;
  load_all(rotation.cos + at, angles.cosine);
  load_all(rotation.sin + at, angles.sine);
  if (rotation.inverse)
#pragma unroll
    for (int j = 0; j < v; ++j) angles.sine[j] = -angles.sine[j];
  return angles;
}

// (low, high) -> (low cos - high sin, high cos + low sin). Pairs are those of the Hugging Face layout: channel j with
// channel j + d/2.
template <int v>
__device__ inline void rotate(const Angles<v>& angles, float (&low)[v], float (&high)[v]) {
#pragma unroll
  for (int j = 0; j < v; ++j) {
    const float a = low[j], b = high[j];
    low[j] = a * angles.cosine[j] - b * angles.sine[j];
    high[j] = b * angles.cosine[j] + a * angles.sine[j];
  }
}

// A thread's vectors of the two halves of a head, in their own type.
template <typename T, int v>
struct HeadPart {
  Raw<T, v> low, high;
  // Two loads of 16 bytes, d/2 elements apart.
  __device__ void read(const T* head, int channel, int d) {
    low = load_raw<v>(head + channel);
    high = load_raw<v>(head + d / 2 + channel);
  }
};

// Loads the norm weights of a thread's channels in both halves.
template <typename T, int v, typename Group>
__device__ inline void load_weight(const Group& group, int channel, int d, float (&w)[2][v]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    load_small<T>(group.norm_weight, group.raw_weight, half * d / 2 + channel, w[half]);
#pragma unroll
    for (int j = 0; j < v; ++j) w[half][j] += group.weight_shift;
  }
}

// Returns 1 / sqrt(square / d + epsilon), for the sum of squares of a head.
__device__ inline float rstd_of(float square, int d, double epsilon) {
  return rsqrtf(square / static_cast<float>(d) + static_cast<float>(epsilon));
}

// Multiplies by rstd and the weight: RMSNorm of one head. All lanes of a warp must call it, also those without a head
// (`here` false) or a norm, since the sum shuffles among all of them.
template <typename T, int v>
__device__ inline void normalize(const HeadGroup& group, int channel, int d, int lanes, bool here, float (&low)[v],
                                 float (&high)[v]) {
  float square = 0;
#pragma unroll
  for (int j = 0; j < v; ++j) square += low[j] * low[j] + high[j] * high[j];
  square = lanes_sum(square, lanes);
  if (!here || group.norm_weight == nullptr) return;
  const float rstd = rstd_of(square, d, group.epsilon);
  float w[2][v];
  load_weight<T>(group, channel, d, w);
#pragma unroll
  for (int j = 0; j < v; ++j) {
    low[j] *= rstd * w[0][j];
    high[j] *= rstd * w[1][j];
  }
}

inline constexpr int kHeadsAtOnce = 2;  // heads per thread: two loads in flight, and the angles are read once for both

// Whether the fast kernels can take these sizes: whole heads rotate in halves, 16 bytes at a time, at most a warp per
// head, and threads that can be counted in 32 bits.
template <typename T>
bool fast_sizes(const Rotation& rotation, int64_t items, int64_t d) {
  if (d % (2 * kVector<T>) != 0 || d / 2 / kVector<T> > 32 || items > (int64_t{1} << 31) / 32) return false;
  if (rotation.half == 0) return true;
  return rotation.half == d / 2 && !rotation.interleaved && aligned(rotation.cos) && aligned(rotation.sin);
}
// Whether every head starts at a multiple of 16 bytes.
template <typename T, typename Heads>
bool fast_heads(const Heads& heads) {
  return aligned(heads.data) && heads.token_stride % kVector<T> == 0 && heads.head_stride % kVector<T> == 0;
}

// Head sizes for which the kernels of head_norms_cuda.cu are compiled.
inline bool usual_size(int64_t d) { return d == 64 || d == 128 || d == 256; }

// map_heads_cuda for heads of the usual sizes that the fast kernels can take, some of them with norms.
void map_norms_cuda(const HeadsShape& shape, const Rotation& rotation, const Groups& groups, void* stream);

}  // namespace megalith::ops
