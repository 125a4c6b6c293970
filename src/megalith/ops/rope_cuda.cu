// Legend: t tokens, d head size, r rotated channels of a head.
//
// Two ways through a head. "Fast": heads that rotate as a whole in halves, or not at all; a few neighbouring threads
// share a head, and each has the same vector of both halves (and of another head of the token: the angles are the
// same). Among these, heads with norms of the usual sizes have kernels of their own. "Any": a warp a head, element by
// element.
#include <algorithm>

#include "megalith/ops/cuda_math.cuh"
#include "megalith/ops/norm_internal.h"
#include "megalith/ops/rope_internal.h"

namespace megalith::ops {

namespace {

constexpr int kThreads = 256;

struct Groups {
  HeadGroup group[3];
  int count = 0;
  int heads = 0;  // of all groups
};

// The group of head number `head` of a token, and its number there.
__device__ inline const HeadGroup& find_group(const Groups& groups, int& head) {
  int g = 0;
  while (head >= groups.group[g].heads) head -= static_cast<int>(groups.group[g++].heads);
  return groups.group[g];
}

template <typename T>
__device__ inline const T* head_of(const HeadsIn& in, int64_t token, int head) {
  return static_cast<const T*>(in.data) + token * in.token_stride + head * in.head_stride;
}
template <typename T>
__device__ inline T* head_of(const HeadsOut& out, int64_t token, int head) {
  return static_cast<T*>(out.data) + token * out.token_stride + head * out.head_stride;
}

// Over the `lanes` (a power of two) neighbours that share a head.
__device__ inline float lanes_sum(float x, int lanes) {
#pragma unroll
  for (int lane = lanes / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffU, x, lane);
  return x;
}

template <int v>
struct Angles {
  float cosine[v], sine[v];
};

// Of `channel` and those behind it.
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

template <int v>
__device__ inline void rotate(const Angles<v>& angles, float (&low)[v], float (&high)[v]) {
#pragma unroll
  for (int j = 0; j < v; ++j) {
    const float a = low[j], b = high[j];
    low[j] = a * angles.cosine[j] - b * angles.sine[j];
    high[j] = b * angles.cosine[j] + a * angles.sine[j];
  }
}

// A thread's vectors of a head's halves, as they lie in memory.
template <typename T, int v>
struct HeadPart {
  Raw<T, v> low, high;
  __device__ void read(const T* head, int channel, int d) {
    low = load_raw<v>(head + channel);
    high = load_raw<v>(head + d / 2 + channel);
  }
};

// Elements of the weight of a group's norm in a head's halves.
template <typename T, int v, typename Group>
__device__ inline void load_weight(const Group& group, int channel, int d, float (&w)[2][v]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    load_small<T>(group.norm_weight, group.raw_weight, half * d / 2 + channel, w[half]);
#pragma unroll
    for (int j = 0; j < v; ++j) w[half][j] += group.weight_shift;
  }
}

__device__ inline float rstd_of(float square, int d, double epsilon) {
  return rsqrtf(square / static_cast<float>(d) + static_cast<float>(epsilon));
}

// x̂ times the weight. All lanes of a warp come here, whatever their heads need.
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

constexpr int kHeadsAtOnce = 2;

template <typename T, int v, bool norms>
__global__ void map_fast_kernel(Groups groups, Rotation rotation, int64_t tokens, int d, int lanes) {
  const unsigned thread = blockIdx.x * kThreads + threadIdx.x;  // 32 bits: divisions are cheap
  const unsigned item = thread / static_cast<unsigned>(lanes);
  const unsigned turns = static_cast<unsigned>(groups.heads + kHeadsAtOnce - 1) / kHeadsAtOnce;
  const int channel = static_cast<int>(thread % static_cast<unsigned>(lanes)) * v;
  const int64_t token = item / turns;
  const int first = static_cast<int>(item % turns) * kHeadsAtOnce;
  const bool inside = token < tokens && channel < d / 2;
  HeadPart<T, v> parts[kHeadsAtOnce];
#pragma unroll
  for (int i = 0; i < kHeadsAtOnce; ++i) {
    int head = first + i;
    if (!inside || head >= groups.heads) continue;
    const HeadGroup& group = find_group(groups, head);
    parts[i].read(head_of<T>(group.in, token, head), channel, d);
  }
  Angles<v> angles = {};
  if (inside && rotation.half > 0) angles = angles_of<v>(rotation, token, channel);
#pragma unroll
  for (int i = 0; i < kHeadsAtOnce; ++i) {
    const bool here = inside && first + i < groups.heads;
    int head = here ? first + i : 0;
    const HeadGroup& group = find_group(groups, head);
    float low[v] = {}, high[v] = {};
    if (here) {
      unpack<T, v>(parts[i].low, low);
      unpack<T, v>(parts[i].high, high);
    }
    if constexpr (norms) normalize<T>(group, channel, d, lanes, here, low, high);
    if (!here) continue;
    if (group.rotate && rotation.half > 0) rotate(angles, low, high);
    T* out = head_of<T>(group.out, token, head);
    store<v>(low, out + channel);
    store<v>(high, out + d / 2 + channel);
  }
}

// Heads of d channels with norms. A warp has some heads of a token side by side, one piece of memory, and kHeadsAtOnce
// times so many; all are read before anything else.
template <typename T, int d>
__global__ void __launch_bounds__(kThreads, 3) map_norms_kernel(Groups groups, Rotation rotation, int64_t tokens) {
  constexpr int v = kVector<T>, kLanes = d / 2 / v, kBeside = 32 / kLanes;
  const unsigned chunks = static_cast<unsigned>(groups.heads + kBeside * kHeadsAtOnce - 1) / (kBeside * kHeadsAtOnce);
  const unsigned warp = (blockIdx.x * kThreads + threadIdx.x) / 32;  // 32 bits: divisions are cheap
  const int64_t token = warp / chunks;
  if (token >= tokens) return;  // a warp together
  const int lane = static_cast<int>(threadIdx.x) % 32, channel = lane % kLanes * v;
  const int first = static_cast<int>(warp % chunks) * kBeside * kHeadsAtOnce + lane / kLanes;
  HeadPart<T, v> parts[kHeadsAtOnce] = {};
#pragma unroll
  for (int i = 0; i < kHeadsAtOnce; ++i) {
    int head = first + i * kBeside;
    if (head >= groups.heads) continue;
    const HeadGroup& group = find_group(groups, head);
    parts[i].read(head_of<T>(group.in, token, head), channel, d);
  }
  Angles<v> angles = {};
  if (rotation.half > 0) angles = angles_of<v>(rotation, token, channel);
#pragma unroll
  for (int i = 0; i < kHeadsAtOnce; ++i) {
    const bool here = first + i * kBeside < groups.heads;
    int head = here ? first + i * kBeside : 0;
    const HeadGroup& group = find_group(groups, head);
    float low[v], high[v];
    unpack<T, v>(parts[i].low, low);
    unpack<T, v>(parts[i].high, high);
    normalize<T>(group, channel, d, kLanes, here, low, high);
    if (!here) continue;
    if (group.rotate && rotation.half > 0) rotate(angles, low, high);
    T* out = head_of<T>(group.out, token, head);
    store<v>(low, out + channel);
    store<v>(high, out + d / 2 + channel);
  }
}

// The channel that rotates with `pair`'s first one, and that one.
__device__ inline int first_of(const Rotation& rotation, int pair) { return rotation.interleaved ? 2 * pair : pair; }
__device__ inline int second_of(const Rotation& rotation, int pair) {
  return rotation.interleaved ? 2 * pair + 1 : pair + static_cast<int>(rotation.half);
}

template <typename T, typename Group>
__device__ inline float weight_at(const Group& group, int channel) {
  return small_element<T>(group.norm_weight, group.raw_weight, channel) + group.weight_shift;
}

template <typename T>
__global__ void map_any_kernel(Groups groups, Rotation rotation, int64_t tokens, int d) {
  const int64_t item = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (item >= tokens * groups.heads) return;
  const int64_t token = item / groups.heads;
  int head = static_cast<int>(item % groups.heads);
  const HeadGroup& group = find_group(groups, head);
  const T* in = head_of<T>(group.in, token, head);
  T* out = head_of<T>(group.out, token, head);
  float rstd = 1;
  const bool norm = group.norm_weight != nullptr;
  if (norm) {
    float square = 0;
    for (int c = lane; c < d; c += 32) square += to_float(in[c]) * to_float(in[c]);
    rstd = rstd_of(warp_sum(square), d, group.epsilon);
  }
  const auto value = [&](int c) {
    const float x = to_float(in[c]);
    return norm ? x * rstd * weight_at<T>(group, c) : x;
  };
  const int half = group.rotate ? static_cast<int>(rotation.half) : 0;
  for (int pair = lane; pair < half; pair += 32) {
    const int first = first_of(rotation, pair), second = second_of(rotation, pair);
    float low[1] = {value(first)}, high[1] = {value(second)};
    rotate(angles_of<1>(rotation, token, pair), low, high);
    out[first] = from_float<T>(low[0]);
    out[second] = from_float<T>(high[0]);
  }
  for (int c = 2 * half + lane; c < d; c += 32) out[c] = from_float<T>(value(c));
}

// The "fast" way back: neighbours share a head as in map_fast_kernel, and go on to the next, which is read while the
// sums of this one are made; a thread always has the same channels. partials [blocks, d].
template <typename T, int v>
__global__ void __launch_bounds__(kThreads, 2) backward_fast_kernel(HeadGroupBackward group, Rotation rotation,
                                                                    unsigned items, int d, int lanes, float* partials) {
  auto* const shared = dynamic_shared<float>();  // [heads at once, d]
  const int lane = static_cast<int>(threadIdx.x) % lanes, slot = static_cast<int>(threadIdx.x) / lanes;
  const unsigned slots = kThreads / static_cast<unsigned>(lanes), heads = static_cast<unsigned>(group.heads);
  const int channel = lane * v;
  const bool wide = channel < d / 2;
  float w[2][v] = {}, sums[2][v] = {};
  if (wide) load_weight<T>(group, channel, d, w);
  HeadPart<T, v> next_x, next_dy;
  const auto fetch = [&](unsigned item) {
    if (item >= items || !wide) return;
    const int64_t token = item / heads;
    const int head = static_cast<int>(item % heads);
    next_x.read(head_of<T>(group.in, token, head), channel, d);
    next_dy.read(head_of<T>(group.grad_out, token, head), channel, d);
  };
  const unsigned step = gridDim.x * slots;
  fetch(blockIdx.x * slots + static_cast<unsigned>(slot));
  for (unsigned first = blockIdx.x * slots; first < items; first += step) {
    const unsigned item = first + static_cast<unsigned>(slot);
    const bool here = item < items && wide;
    const int64_t token = here ? item / heads : 0;
    const int head = here ? static_cast<int>(item % heads) : 0;
    float x[2][v] = {}, slope[2][v] = {};
    if (here) {
      unpack<T, v>(next_x.low, x[0]);
      unpack<T, v>(next_x.high, x[1]);
      unpack<T, v>(next_dy.low, slope[0]);
      unpack<T, v>(next_dy.high, slope[1]);
      if (rotation.half > 0) rotate(angles_of<v>(rotation, token, channel), slope[0], slope[1]);
    }
    fetch(item + step);
    float square = 0, along = 0;
#pragma unroll
    for (int j = 0; j < v; ++j) square += x[0][j] * x[0][j] + x[1][j] * x[1][j];
    square = lanes_sum(square, lanes);
    const float rstd = rstd_of(square, d, group.epsilon);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < v; ++j) {
        x[half][j] *= rstd;  // x̂ from here on
        sums[half][j] += slope[half][j] * x[half][j];
        slope[half][j] *= w[half][j];
        along += slope[half][j] * x[half][j];
      }
    along = lanes_sum(along, lanes) / static_cast<float>(d);
    if (!here) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < v; ++j) slope[half][j] = (slope[half][j] - x[half][j] * along) * rstd;
    T* dx = head_of<T>(group.grad_in, token, head);
    store<v>(slope[0], dx + channel);
    store<v>(slope[1], dx + d / 2 + channel);
  }
  if (wide)
#pragma unroll
    for (int j = 0; j < v; ++j) {
      shared[slot * d + channel + j] = sums[0][j];
      shared[slot * d + d / 2 + channel + j] = sums[1][j];
    }
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < d; c += kThreads) {
    float sum = 0;
    for (unsigned i = 0; i < slots; ++i) sum += shared[i * static_cast<unsigned>(d) + static_cast<unsigned>(c)];
    partials[int64_t{blockIdx.x} * d + c] = sum;
  }
}

// A warp a head, and then the next; a lane always has the same channels, whose weights' gradients it sums up. `most`
// pairs and `most` single channels a lane. partials [blocks, d].
template <typename T, int most>
__global__ void backward_kernel(HeadGroupBackward group, Rotation rotation, int64_t tokens, int d, float* partials) {
  auto* const shared = dynamic_shared<float>();  // [warps, d]
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  constexpr int kWarps = kThreads / 32;
  const int half = static_cast<int>(rotation.half);
  float sums[3][most] = {};
  for (int64_t item = int64_t{blockIdx.x} * kWarps + warp; item < tokens * group.heads;
       item += int64_t{gridDim.x} * kWarps) {
    const int64_t token = item / group.heads;
    const int head = static_cast<int>(item % group.heads);
    const T *in = head_of<T>(group.in, token, head), *dy = head_of<T>(group.grad_out, token, head);
    T* dx = head_of<T>(group.grad_in, token, head);
    float x[3][most], slope[3][most];  // first and second of the pairs; the channels behind them
    float square = 0, along = 0;
#pragma unroll
    for (int i = 0; i < most; ++i) {
      const int pair = lane + 32 * i, c = 2 * half + lane + 32 * i;
      x[0][i] = x[1][i] = x[2][i] = slope[0][i] = slope[1][i] = slope[2][i] = 0;
      if (pair < half) {
        const int first = first_of(rotation, pair), second = second_of(rotation, pair);
        x[0][i] = to_float(in[first]);
        x[1][i] = to_float(in[second]);
        float low[1] = {to_float(dy[first])}, high[1] = {to_float(dy[second])};
        rotate(angles_of<1>(rotation, token, pair), low, high);
        slope[0][i] = low[0];
        slope[1][i] = high[0];
      }
      if (c < d) {
        x[2][i] = to_float(in[c]);
        slope[2][i] = to_float(dy[c]);
      }
      for (int part = 0; part < 3; ++part) square += x[part][i] * x[part][i];
    }
    const float rstd = rstd_of(warp_sum(square), d, group.epsilon);
#pragma unroll
    for (int i = 0; i < most; ++i) {
      const int pair = lane + 32 * i, c = 2 * half + lane + 32 * i;
      for (int part = 0; part < 3; ++part) {
        const bool there = part < 2 ? pair < half : c < d;
        if (!there) continue;
        const int channel = part == 0 ? first_of(rotation, pair) : part == 1 ? second_of(rotation, pair) : c;
        x[part][i] *= rstd;  // x̂ from here on
        sums[part][i] += slope[part][i] * x[part][i];
        slope[part][i] *= weight_at<T>(group, channel);
        along += slope[part][i] * x[part][i];
      }
    }
    along = warp_sum(along) / static_cast<float>(d);
#pragma unroll
    for (int i = 0; i < most; ++i) {
      const int pair = lane + 32 * i, c = 2 * half + lane + 32 * i;
      const auto put = [&](int part, int channel) {
        dx[channel] = from_float<T>((slope[part][i] - x[part][i] * along) * rstd);
      };
      if (pair < half) {
        put(0, first_of(rotation, pair));
        put(1, second_of(rotation, pair));
      }
      if (c < d) put(2, c);
    }
  }
#pragma unroll
  for (int i = 0; i < most; ++i) {
    const int pair = lane + 32 * i, c = 2 * half + lane + 32 * i;
    if (pair < half) {
      shared[warp * d + first_of(rotation, pair)] = sums[0][i];
      shared[warp * d + second_of(rotation, pair)] = sums[1][i];
    }
    if (c < d) shared[warp * d + c] = sums[2][i];
  }
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < d; c += kThreads) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += shared[w * d + c];
    partials[int64_t{blockIdx.x} * d + c] = sum;
  }
}

// Query, key and value in one pass. A warp has a token, some heads of it side by side, and goes through all of them
// with the token's angles in registers. Heads, and with a token's first ones its angles, come through a ring in shared
// memory, in which a thread reads only what it copied itself: no barrier. Both sums of a head are made at once:
// dx = rstd (slope w - x rstd² Σ(slope w x) / d). partials [blocks, 2d]: query's, key's.
constexpr int kSplitThreads = 128, kSplitStages = 2;

template <int v>
inline constexpr int kSplitVectors = 4 + v / 2;  // of 16 bytes, of a thread in a stage: of x, dy, cos and sin

template <typename T, int d>
__global__ void __launch_bounds__(kSplitThreads, 3)
    split_backward_kernel(QkvBackward qkv, Rotation rotation, int tokens, float* partials) {
  constexpr int v = kVector<T>, kHalf = d / 2, kLanes = kHalf / v, kBeside = 32 / kLanes, kWarps = kSplitThreads / 32;
  using Vector = Raw<T, v>;
  __shared__ Vector weights[2][d / v];
  Vector* const ring = dynamic_shared<Vector>() + threadIdx.x;  // [stages, vectors, threads]
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int slot = lane / kLanes, channel = lane % kLanes * v;
  const int first_token = static_cast<int>(blockIdx.x) * kWarps + warp,
            token_step = static_cast<int>(gridDim.x) * kWarps;
  const auto rounds_of = [&](int g) { return static_cast<int>(qkv.part[g].heads + kBeside - 1) / kBeside; };
  const int rounds_q = rounds_of(0), rounds_k = rounds_of(1), rounds = rounds_q + rounds_k + rounds_of(2);

  struct Place {  // of a thread's head
    int group, head;
    bool here;
  };
  const auto place_of = [&](int round) -> Place {  // a warp's group is one
    const int group = round < rounds_q ? 0 : round < rounds_q + rounds_k ? 1 : 2;
    round -= group == 0 ? 0 : group == 1 ? rounds_q : rounds_q + rounds_k;
    const int head = round * kBeside + slot;
    return {group, head, head < static_cast<int>(qkv.part[group].heads)};
  };
  int ahead_token = first_token, ahead_round = 0;
  const auto ask = [&](int stage) {
    if (ahead_token < tokens) {
      const Place at = place_of(ahead_round);
      Vector* const to = ring + stage * kSplitVectors<v> * kSplitThreads;
      const auto copy = [&](int i, const void* from) { copy_async(to + i * kSplitThreads, from); };
      if (at.here) {
        const HeadGroupBackward& group = qkv.part[at.group];
        if (at.group < 2) {
          const T* x = head_of<T>(group.in, ahead_token, at.head) + channel;
          copy(0, x);
          copy(1, x + kHalf);
        }
        const T* dy = head_of<T>(group.grad_out, ahead_token, at.head) + channel;
        copy(2, dy);
        copy(3, dy + kHalf);
      }
      if (ahead_round == 0) {
        const int64_t angle = int64_t{ahead_token} * kHalf + channel;
#pragma unroll
        for (int j = 0; j < v; j += 4) {
          copy(4 + j / 4, rotation.cos + angle + j);
          copy(4 + (v + j) / 4, rotation.sin + angle + j);
        }
      }
      if (++ahead_round == rounds) {
        ahead_round = 0;
        ahead_token += token_step;
      }
    }
    commit_copies();
  };
  for (int s = 0; s < kSplitStages; ++s) ask(s);
  for (int i = static_cast<int>(threadIdx.x); i < 2 * d / v; i += kSplitThreads)
    weights[i / (d / v)][i % (d / v)] =
        load_raw<v>(static_cast<const T*>(qkv.part[i / (d / v)].norm_weight) + i % (d / v) * v);
  __syncthreads();

  float sums_q[2][v] = {}, sums_k[2][v] = {};
  Angles<v> angles = {};
  int stage = 0;
  for (int token = first_token; token < tokens; token += token_step)
    for (int round = 0; round < rounds; ++round) {
      const Place at = place_of(round);
      const HeadGroupBackward& group = qkv.part[at.group];
      T* const dx = at.here ? head_of<T>(group.grad_in, token, at.head) + channel : nullptr;
      wait_copies<kSplitStages - 1>();
      const Vector* const from = ring + stage * kSplitVectors<v> * kSplitThreads;
      Vector raw[4];  // x's halves, dy's
#pragma unroll
      for (int i = 0; i < 4; ++i) raw[i] = at.here && (i >= 2 || at.group < 2) ? from[i * kSplitThreads] : Vector{};
      if (round == 0)
#pragma unroll
        for (int j = 0; j < v; ++j) {
          const auto angle = [&](int i) {
            return reinterpret_cast<const float*>(from + (4 + i / 4) * kSplitThreads)[i % 4];
          };
          angles.cosine[j] = angle(j);
          angles.sine[j] = rotation.inverse ? -angle(v + j) : angle(v + j);
        }
      if (at.group == 2 && at.here) {
        *reinterpret_cast<Vector*>(dx) = raw[2];
        *reinterpret_cast<Vector*>(dx + kHalf) = raw[3];
      }
      float x[2][v], slope[2][v], w[2][v];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        unpack<T, v>(raw[half], x[half]);
        unpack<T, v>(raw[2 + half], slope[half]);
        unpack<T, v>(weights[min(at.group, 1)][half * kLanes + lane % kLanes], w[half]);
      }
      rotate(angles, slope[0], slope[1]);
      float square = 0, along = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int j = 0; j < v; ++j) {
          w[half][j] = (w[half][j] + group.weight_shift) * slope[half][j];
          square += x[half][j] * x[half][j];
          along += w[half][j] * x[half][j];
        }
      ask(stage);
      stage = (stage + 1) % kSplitStages;
      square = lanes_sum(square, kLanes);
      along = lanes_sum(along, kLanes);
      if (at.group == 2 || !at.here) continue;
      const float rstd = rstd_of(square, d, group.epsilon);
      const float back = -along * rstd * rstd * rstd / static_cast<float>(d);
      const auto add_to = [&](float(&sums)[2][v]) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int j = 0; j < v; ++j) sums[half][j] += slope[half][j] * (x[half][j] * rstd);
      };
      at.group == 0 ? add_to(sums_q) : add_to(sums_k);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float grad[v];
#pragma unroll
        for (int j = 0; j < v; ++j) grad[j] = w[half][j] * rstd + x[half][j] * back;
        store<v>(grad, dx + half * kHalf);
      }
    }

  // The sums of the block: over the heads of a warp, and then over the warps.
  wait_copies<0>();
  __syncthreads();
  auto* const shared = dynamic_shared<float>();  // [warps, 2d]
  const auto put = [&](const float(&sums)[2][v], int before) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < v; ++j) {
        float sum = sums[half][j];
#pragma unroll
        for (int other = kLanes; other < 32; other *= 2) sum += __shfl_xor_sync(0xffffffffU, sum, other);
        if (slot == 0) shared[warp * 2 * d + before + half * kHalf + channel + j] = sum;
      }
  };
  put(sums_q, 0);
  put(sums_k, d);
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < 2 * d; c += kSplitThreads) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum += shared[i * 2 * d + c];
    partials[int64_t{blockIdx.x} * 2 * d + c] = sum;
  }
}

unsigned blocks_for(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

// Whether the sizes are for the "fast" way: whole heads in halves, 16 bytes at a time, counted in 32 bits.
template <typename T>
bool fast_sizes(const Rotation& rotation, int64_t items, int64_t d) {
  if (d % (2 * kVector<T>) != 0 || d / 2 / kVector<T> > 32 || items > (int64_t{1} << 31) / 32) return false;
  if (rotation.half == 0) return true;
  return rotation.half == d / 2 && !rotation.interleaved && aligned(rotation.cos) && aligned(rotation.sin);
}
template <typename T, typename Heads>
bool fast_heads(const Heads& heads) {
  return aligned(heads.data) && heads.token_stride % kVector<T> == 0 && heads.head_stride % kVector<T> == 0;
}
// Threads that share a head.
template <typename T>
int lanes_for(int d) {
  int lanes = 1;
  while (lanes * kVector<T> < d / 2) lanes *= 2;
  return lanes;
}

template <typename T>
bool fast(const Rotation& rotation, const Groups& groups, int64_t items, int64_t d) {
  if (!fast_sizes<T>(rotation, items, d)) return false;
  for (int i = 0; i < groups.count; ++i) {
    const HeadGroup& group = groups.group[i];
    if (!fast_heads<T>(group.in) || !fast_heads<T>(group.out) || !aligned(group.norm_weight)) return false;
  }
  return true;
}

int most_blocks() { return multiprocessors() * 4; }
int64_t most_split_blocks() { return int64_t{multiprocessors()} * 8; }

// Head sizes for which kernels with norms are compiled: run.template operator()<d>().
bool usual_size(int64_t d) { return d == 64 || d == 128 || d == 256; }
template <typename Run>
void for_usual_size(int64_t d, const Run& run) {
  if (d == 64) return run.template operator()<64>();
  if (d == 128) return run.template operator()<128>();
  run.template operator()<256>();
}

}  // namespace

void map_heads_cuda(const HeadsShape& shape, const Rotation& rotation, std::span<const HeadGroup> parts, void* stream) {
  Groups groups;
  for (const HeadGroup& part : parts) {
    if (part.heads == 0) continue;
    groups.group[groups.count++] = part;
    groups.heads += static_cast<int>(part.heads);
  }
  const int64_t items = shape.tokens * groups.heads;
  const int d = static_cast<int>(shape.head_dim);
  if (items == 0 || d == 0) return;
  for_dtype(shape.dtype, [&]<typename T>(T) {
    if (fast<T>(rotation, groups, items, d)) {
      const int lanes = lanes_for<T>(d);
      const bool norms = std::ranges::any_of(parts, [](const HeadGroup& part) { return part.norm_weight != nullptr; });
      if (norms && usual_size(d)) {
        const int64_t of_warp = 32 / lanes * kHeadsAtOnce, warps = (groups.heads + of_warp - 1) / of_warp;
        return for_usual_size(d, [&]<int size>() {
          launch("map_heads", map_norms_kernel<T, size>, {blocks_for(shape.tokens * warps * 32), kThreads, stream},
                 groups, rotation, shape.tokens);
        });
      }
      const int64_t turns = (groups.heads + kHeadsAtOnce - 1) / kHeadsAtOnce;
      const auto run = [&](auto kernel) {
        launch("map_heads", kernel, {blocks_for(shape.tokens * turns * lanes), kThreads, stream}, groups, rotation,
               shape.tokens, d, lanes);
      };
      if (norms) return run(map_fast_kernel<T, kVector<T>, true>);
      run(map_fast_kernel<T, kVector<T>, false>);
    } else {
      launch("map_heads", map_any_kernel<T>, {blocks_for(items * 32), kThreads, stream}, groups, rotation, shape.tokens,
             d);
    }
  });
}

int64_t map_heads_backward_workspace_cuda(const HeadsShape& shape) { return most_blocks() * shape.head_dim; }

void map_heads_backward_cuda(const HeadsShape& shape, const Rotation& rotation, const HeadGroupBackward& group,
                             float* workspace, void* stream) {
  const int d = static_cast<int>(shape.head_dim);
  const int64_t items = shape.tokens * group.heads;
  const int blocks = static_cast<int>(std::min<int64_t>(most_blocks(), (items + kThreads / 32 - 1) / (kThreads / 32)));
  const auto grid = static_cast<unsigned>(blocks);
  if (d > 512) fail_kernel("map_heads_backward", "heads have more than 512 channels");
  if (blocks > 0)
    for_dtype(shape.dtype, [&]<typename T>(T) {
      if (fast_sizes<T>(rotation, items, d) && fast_heads<T>(group.in) && fast_heads<T>(group.grad_out) &&
          fast_heads<T>(group.grad_in) && aligned(group.norm_weight)) {
        const int lanes = lanes_for<T>(d);
        const size_t shared = kThreads / static_cast<size_t>(lanes) * sizeof(float) * static_cast<size_t>(d);
        return launch("map_heads_backward", backward_fast_kernel<T, kVector<T>>, {grid, kThreads, stream, shared},
                      group, rotation, static_cast<unsigned>(items), d, lanes, workspace);
      }
      const size_t bytes = kThreads / 32 * sizeof(float) * static_cast<size_t>(d);
      const auto run = [&](auto kernel) {
        launch("map_heads_backward", kernel, {grid, kThreads, stream, bytes}, group, rotation, shape.tokens, d,
               workspace);
      };
      // Pairs and single channels that a lane may have.
      const int64_t longest = std::max<int64_t>(rotation.half, d - 2 * rotation.half);
      if (longest <= 32) return run(backward_kernel<T, 1>);
      if (longest <= 64) return run(backward_kernel<T, 2>);
      if (longest <= 128) return run(backward_kernel<T, 4>);
      run(backward_kernel<T, 16>);
    });
  weight_grads_cuda(workspace, blocks, {group.grad_weight, group.grad_weight_dtype, d}, {}, stream);
}

bool can_split_backward_cuda(const HeadsShape& shape, const Rotation& rotation, const QkvBackward& qkv) {
  if (!usual_size(shape.head_dim) || rotation.half == 0 || shape.tokens == 0) return false;
  bool can = true;
  for_dtype(shape.dtype, [&]<typename T>(T) {
    for (size_t i = 0; i < 3; ++i) {
      const HeadGroupBackward& group = qkv.part[i];
      can = can && group.heads > 0 && fast_sizes<T>(rotation, shape.tokens * group.heads, shape.head_dim) &&
            fast_heads<T>(group.grad_out) && fast_heads<T>(group.grad_in);
      const bool norm = group.norm_weight != nullptr && group.raw_weight && aligned(group.norm_weight);
      if (i < 2) can = can && norm && fast_heads<T>(group.in);
    }
  });
  return can;
}

int64_t split_backward_workspace_cuda(const HeadsShape& shape) { return most_split_blocks() * 2 * shape.head_dim; }

void split_backward_cuda(const HeadsShape& shape, const Rotation& rotation, const QkvBackward& qkv, float* workspace,
                         void* stream) {
  constexpr int64_t kTokens = kSplitThreads / 32;  // of a block, at once
  int64_t blocks = 0;
  for_dtype(shape.dtype, [&]<typename T>(T) {
    for_usual_size(shape.head_dim, [&]<int d>() {
      const auto kernel = split_backward_kernel<T, d>;
      const size_t shared = size_t{16} * kSplitVectors<kVector<T>> * kSplitThreads * kSplitStages;
      blocks = std::min({(shape.tokens + kTokens - 1) / kTokens, resident_blocks(kernel, kSplitThreads, shared),
                         most_split_blocks()});
      launch("split_backward", kernel, {static_cast<unsigned>(blocks), kSplitThreads, stream, shared}, qkv, rotation,
             static_cast<int>(shape.tokens), workspace);
    });
  });
  const auto grad = [&](size_t i) {
    return WeightGrad{qkv.part[i].grad_weight, qkv.part[i].grad_weight_dtype, shape.head_dim};
  };
  weight_grads_cuda(workspace, blocks, grad(0), grad(1), stream);
}

}  // namespace megalith::ops
