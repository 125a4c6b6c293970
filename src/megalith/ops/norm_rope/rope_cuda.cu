// Split, norm and rotation of heads on CUDA. Legend: t tokens, d head size, r rotated channels of a head, v elements of
// 16 bytes.
//
//   forward    out = R(x̂ w),  x̂ = x rstd,  rstd = 1 / sqrt(avg(x²) + epsilon);   R rotates pairs of channels
//   backward   u = R⁻¹ dy,  g = u w,  dx = rstd (g - x̂ avg(g x̂)),  dw = Σ u x̂ over tokens and heads
//
// There are two families of kernels:
//   fast   heads that rotate as a whole in halves, or not at all. d/2/v neighboring threads (rounded up to a power of
//          two) share a head; each owns the same vector of both halves (picture in rope_cuda.cuh), of two heads of a
//          token, which have the same angles. Heads of the usual sizes with norms have kernels of their own in
//          head_norms_cuda.cu.
//   any    partial or interleaved rotation, odd sizes: a warp per head, element by element.
//
// Thread to data, for d = 128 in bf16 (v = 8, so 8 lanes per head; a warp covers 4 times 2 heads of a token):
//
//   lane 0 ... 7     heads 2i and 2i + 1,       lane l has channels [8l, 8l + 8) and [64 + 8l, 64 + 8l + 8) of both
//   lane 8 ... 15    heads 2i + 2 and 2i + 3    ...
//
// Memory traffic: each head is read once and written once (backward: x and dy read, dx written); the angles, r floats
// per token, are read by every head of a token but come from the cache after the first. Without norms backward is
// forward with the inverse rotation, R⁻¹ = Rᵀ, and moves as many bytes: 4 per element of bf16. Measured on an H200
// against a copy of as many bytes (docs/gpu.md), 32 + 2 x 8 heads without norms: of 64 channels 0.92 both ways, of 128
// channels 0.93 forward and 0.94 backward.
#include <algorithm>

#include "megalith/ops/norm_rope/rope_cuda.cuh"

namespace megalith::ops {

namespace {

constexpr int kThreads = 256;

// Thread -> (token, turn, lane): `lanes` threads handle heads kHeadsAtOnce · turn and the next one of a token. Nobody
// returns early, since normalize() shuffles; `inside` says whether a thread has anything to do.
template <typename T, int v, bool norms>
__global__ void map_fast_kernel(Groups groups, Rotation rotation, int64_t tokens, int d, int lanes) {
  const unsigned thread = blockIdx.x * kThreads + threadIdx.x;  // 32 bits: divisions are cheap
  const unsigned item = thread / static_cast<unsigned>(lanes);
  // A token's heads are counted through all groups, query first: head 32 of 32 + 2 x 8 is the first key.
  const unsigned turns = static_cast<unsigned>(groups.heads + kHeadsAtOnce - 1) / kHeadsAtOnce;
  const int channel = static_cast<int>(thread % static_cast<unsigned>(lanes)) * v;
  const int64_t token = item / turns;
  const int first = static_cast<int>(item % turns) * kHeadsAtOnce;
  const bool inside = token < tokens && channel < d / 2;
  HeadPart<T, v> parts[kHeadsAtOnce];  // all loads before the first use
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

// The two channels that rotate together as number `pair`.
__device__ inline int first_of(const Rotation& rotation, int pair) { return rotation.interleaved ? 2 * pair : pair; }
__device__ inline int second_of(const Rotation& rotation, int pair) {
  return rotation.interleaved ? 2 * pair + 1 : pair + static_cast<int>(rotation.half);
}

// Returns the weight of a channel, with the shift of zero-centered weights.
template <typename T, typename Group>
__device__ inline float weight_at(const Group& group, int channel) {
  return small_element<T>(group.norm_weight, group.raw_weight, channel) + group.weight_shift;
}

// A warp per head; lane l has the pairs l, l + 32, ... and of the channels that do not rotate 2·half + l, ... A second
// read of the head, after its sum of squares, hits the cache.
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

// Backward of fast heads with a norm. Threads share a head as in map_fast_kernel; a block has 256 / lanes heads at once
// and walks over all heads of all tokens. A thread always has the same channels and keeps their weights and sums of dw
// in registers; the next head is loaded while the sums of this one are made. partials: [blocks, d].
template <typename T, int v>
__global__ void __launch_bounds__(kThreads, 2) backward_fast_kernel(HeadGroupBackward group, Rotation rotation,
                                                                    unsigned items, int d, int lanes, float* partials) {
  auto* const shared = dynamic_shared<float>();  // [heads at once, d]
  const int lane = static_cast<int>(threadIdx.x) % lanes, slot = static_cast<int>(threadIdx.x) / lanes;
  const unsigned slots = kThreads / static_cast<unsigned>(lanes), heads = static_cast<unsigned>(group.heads);
  const int channel = lane * v;
  const bool wide = channel < d / 2;  // false for lanes that only round a head up to a power of two
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
    // The next head travels while this one waits for its two sums over lanes, the longest chain of the loop.
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
  // The block's heads, [slots, d], are added in the order of slots.
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

// Backward of any heads with a norm: a warp per head, walking over all heads. A lane always has the same channels and
// sums the gradients of their weights: at most `most` pairs and `most` channels that do not rotate. partials: [blocks,
// d].
template <typename T, int most>
__global__ void backward_kernel(HeadGroupBackward group, Rotation rotation, int64_t tokens, int d, float* partials) {
  auto* const shared = dynamic_shared<float>();  // [warps, d]
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  constexpr int kWarps = kThreads / 32;
  const int half = static_cast<int>(rotation.half);
  float sums[3][most] = {};  // dw of this lane's channels, in the three parts of `x` below
  for (int64_t item = int64_t{blockIdx.x} * kWarps + warp; item < tokens * group.heads;
       item += int64_t{gridDim.x} * kWarps) {
    const int64_t token = item / group.heads;
    const int head = static_cast<int>(item % group.heads);
    const T *in = head_of<T>(group.in, token, head), *dy = head_of<T>(group.grad_out, token, head);
    T* dx = head_of<T>(group.grad_in, token, head);
    float x[3][most], slope[3][most];  // first and second channels of the pairs; channels that do not rotate
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
      const auto write_grad = [&](int part, int channel) {
        dx[channel] = from_float<T>((slope[part][i] - x[part][i] * along) * rstd);
      };
      if (pair < half) {
        write_grad(0, first_of(rotation, pair));
        write_grad(1, second_of(rotation, pair));
      }
      if (c < d) write_grad(2, c);
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

unsigned blocks_for(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

// Returns how many threads share a head: a power of two, so that lanes_sum() stays inside a head.
template <typename T>
int lanes_for(int d) {
  int lanes = 1;
  while (lanes * kVector<T> < d / 2) lanes *= 2;
  return lanes;
}

// Whether map_fast_kernel can take a launch: sizes, and the alignment of every group.
template <typename T>
bool fast(const Rotation& rotation, const Groups& groups, int64_t items, int64_t d) {
  if (!fast_sizes<T>(rotation, items, d)) return false;
  for (int i = 0; i < groups.count; ++i) {
    const HeadGroup& group = groups.group[i];
    if (!fast_heads<T>(group.in) || !fast_heads<T>(group.out) || !aligned(group.norm_weight)) return false;
  }
  return true;
}

// Blocks of the backward kernels, each with a row of partial sums.
int most_blocks() { return multiprocessors() * 4; }

}  // namespace

void map_heads_cuda(const HeadsShape& shape, const Rotation& rotation, std::span<const HeadGroup> parts, void* stream) {
  // All groups go into one launch: separate ones would read the angles again, and small groups (few key heads) would
  // not fill the device.
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
      if (norms && usual_size(d)) return map_norms_cuda(shape, rotation, groups, stream);
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
      // Pairs, or channels that do not rotate, of a warp: they decide how many registers a lane needs.
      const int64_t longest = std::max<int64_t>(rotation.half, d - 2 * rotation.half);
      if (longest <= 32) return run(backward_kernel<T, 1>);
      if (longest <= 64) return run(backward_kernel<T, 2>);
      if (longest <= 128) return run(backward_kernel<T, 4>);
      run(backward_kernel<T, 16>);
    });
  column_sums_cuda(workspace, blocks, {group.grad_weight, group.grad_weight_dtype, d}, {}, stream);
}

}  // namespace megalith::ops
