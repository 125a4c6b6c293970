// Split, norm and rotation of heads whose sizes (64, 128, 256) are known to the compiler: the fast kernels of
// rope_cuda.cu for models with query and key norms. Formulas are there. Legend: t tokens, d head size, v elements of 16
// bytes, kLanes = d / 2 / v lanes per head, kBeside = 32 / kLanes heads side by side in a warp.
//
// Who owns what, for d = 128 in bf16 (v = 8, kLanes = 8, kBeside = 4):
//
//   lane       0 ... 7 | 8 ... 15 | 16 ... 23 | 24 ... 31
//   head        h      |  h + 1   |   h + 2   |   h + 3         neighbors in memory: a warp reads 1 KiB of one piece
//   channels   lane l of a head has [8l, 8l + 8) of the low half and the same of the high half
//
//   d in bf16   kLanes   kBeside
//    64            4        8       the head size changes how many lanes share a head, not the work of a thread:
//   128            8        4       two vectors of each of its heads
//   256           16        2
//
// With d known at compile time, divisions by kLanes are shifts and the loops over shuffles are unrolled.
//
// Both kernels read every head once and write it once. Bytes per token in bf16, with a query and b key heads of d:
// forward 4 (a + 2b) d, backward 2 (3a + 5b) d (x of query and key; dy and dx of all); angles add 4 d to both. Measured
// on an H200 against a copy of as many bytes (docs/gpu.md), 32 query and 2 x 4 key/value heads of 128: 0.88 forward,
// 0.87 backward.
#include <algorithm>

#include "megalith/ops/norm_rope/rope_cuda.cuh"

namespace megalith::ops {

namespace {

constexpr int kThreads = 256;

// Forward. A warp has kHeadsAtOnce · kBeside consecutive heads of one token, which may belong to different groups; all
// are read before anything is computed.
template <typename T, int d>
__global__ void __launch_bounds__(kThreads, 3) map_norms_kernel(Groups groups, Rotation rotation, int64_t tokens) {
  constexpr int v = kVector<T>, kLanes = d / 2 / v, kBeside = 32 / kLanes;
  const unsigned chunks = static_cast<unsigned>(groups.heads + kBeside * kHeadsAtOnce - 1) / (kBeside * kHeadsAtOnce);
  const unsigned warp = (blockIdx.x * kThreads + threadIdx.x) / 32;  // 32 bits: divisions are cheap
  const int64_t token = warp / chunks;
  if (token >= tokens) return;  // whole warps: the shuffles below see all lanes
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

// Backward of query, key and value in one pass. A warp has a token and goes through all of its heads in rounds of
// kBeside, first those of query, then key, then value, with the token's angles in registers; then it takes the token
// gridDim.x · 4 further on:
//
//   warp -> token;   round -> kBeside heads of one group;   lane / kLanes -> head;   lane % kLanes -> channels
//
// With slope = R⁻¹ dy and the sums over a head both taken over x (not x̂), so that they are made at once:
//   dx = rstd (slope w - x rstd² Σ(slope w x) / d),   dw = Σ slope x rstd;   value's gradient is copied as it is
//
// Heads to come, and with the first ones of a token its angles, are copied ahead to a ring in shared memory. A thread
// reads only what it copied itself, so that the ring needs no barrier. A thread's slots of a stage, 16 bytes each:
//
//   0 x low | 1 x high | 2 dy low | 3 dy high | 4 ... cos (v floats) | ... sin (v floats)
//
// partials: [blocks, 2d], the sums of dw of query, then of key.
// A stage takes 16 · (4 + v / 2) bytes per thread, so that two of them are 32 KiB per block in bf16.
constexpr int kSplitThreads = 128, kSplitStages = 2;

template <int v>
inline constexpr int kSplitVectors = 4 + v / 2;  // slots of a thread in a stage

// Iterates over the heads of a warp's tokens, and fills the thread's slots of the ring ahead of the computation.
template <typename T, int d>
struct SplitHeads {
  static constexpr int v = kVector<T>, kHalf = d / 2, kLanes = kHalf / v, kBeside = 32 / kLanes;
  using Vector = Raw<T, v>;

  const QkvBackward& qkv;
  const Rotation& rotation;
  Vector* ring;       // [stages, vectors, threads], from this thread's first slot on
  int slot, channel;  // the thread's number among the kBeside heads, and its first channel in each half
  int tokens, token_step;
  int ahead_token, ahead_round = 0;  // the next heads to copy
  int rounds_q = rounds_of(0), rounds_k = rounds_of(1), rounds = rounds_q + rounds_k + rounds_of(2);

  struct Place {      // a thread's head in one round
    int group, head;  // group: 0 query, 1 key, 2 value
    bool here;        // false in the last round of a group, if its heads are not a multiple of kBeside
  };
  __device__ int rounds_of(int group) const { return static_cast<int>(qkv.part[group].heads + kBeside - 1) / kBeside; }
  // All lanes of a warp get the same group.
  __device__ Place place_of(int round) const {
    const int group = round < rounds_q ? 0 : round < rounds_q + rounds_k ? 1 : 2;
    round -= group == 0 ? 0 : group == 1 ? rounds_q : rounds_q + rounds_k;
    const int head = round * kBeside + slot;
    return {group, head, head < static_cast<int>(qkv.part[group].heads)};
  }
  __device__ Vector* stage(int number) const { return ring + number * kSplitVectors<v> * kSplitThreads; }

  // Starts copying the next heads into a stage. Commits a group also after the last token, so that waits can count.
  __device__ void ask(int number) {
    if (ahead_token < tokens) {
      const Place at = place_of(ahead_round);
      const auto copy = [to = stage(number)](int i, const void* from) { copy_async(to + i * kSplitThreads, from); };
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
  }
};

// Writes the sums of a block: adds the lanes of a warp that have the same channels of different heads by shuffles, then
// the warps in order, in shared memory that was the ring.
template <typename T, int d>
__device__ inline void write_split_sums(const float (&sums_q)[2][kVector<T>], const float (&sums_k)[2][kVector<T>],
                                        float* partials) {
  constexpr int v = kVector<T>, kHalf = d / 2, kLanes = kHalf / v, kWarps = kSplitThreads / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  auto* const shared = dynamic_shared<float>();  // [warps, 2d]
  const auto add_lanes = [&](const float(&sums)[2][v], int before) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < v; ++j) {
        float sum = sums[half][j];
#pragma unroll
        for (int other = kLanes; other < 32; other *= 2) sum += __shfl_xor_sync(0xffffffffU, sum, other);
        if (lane < kLanes) shared[warp * 2 * d + before + half * kHalf + lane * v + j] = sum;
      }
  };
  add_lanes(sums_q, 0);
  add_lanes(sums_k, d);
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < 2 * d; c += kSplitThreads) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum += shared[i * 2 * d + c];
    partials[int64_t{blockIdx.x} * 2 * d + c] = sum;
  }
}

template <typename T, int d>
__global__ void __launch_bounds__(kSplitThreads, 3)
    split_backward_kernel(QkvBackward qkv, Rotation rotation, int tokens, float* partials) {
  using Heads = SplitHeads<T, d>;
  using Vector = typename Heads::Vector;
  constexpr int v = Heads::v, kHalf = Heads::kHalf, kLanes = Heads::kLanes, kWarps = kSplitThreads / 32;
  __shared__ Vector weights[2][d / v];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int channel = lane % kLanes * v, first_token = static_cast<int>(blockIdx.x) * kWarps + warp;
  Heads heads{.qkv = qkv,
              .rotation = rotation,
              .ring = dynamic_shared<Vector>() + threadIdx.x,
              .slot = lane / kLanes,
              .channel = channel,
              .tokens = tokens,
              .token_step = static_cast<int>(gridDim.x) * kWarps,
              .ahead_token = first_token};
  for (int s = 0; s < kSplitStages; ++s) heads.ask(s);
  // The weights of query and key go to shared memory in their own type: registers are needed for the sums.
  for (int i = static_cast<int>(threadIdx.x); i < 2 * d / v; i += kSplitThreads)
    weights[i / (d / v)][i % (d / v)] =
        load_raw<v>(static_cast<const T*>(qkv.part[i / (d / v)].norm_weight) + i % (d / v) * v);
  __syncthreads();

  float sums_q[2][v] = {}, sums_k[2][v] = {};
  Angles<v> angles = {};
  int stage = 0;
  for (int token = first_token; token < tokens; token += heads.token_step)
    for (int round = 0; round < heads.rounds; ++round) {
      const auto at = heads.place_of(round);
      const HeadGroupBackward& group = qkv.part[at.group];
      T* const dx = at.here ? head_of<T>(group.grad_in, token, at.head) + channel : nullptr;
      wait_copies<kSplitStages - 1>();
      const Vector* const from = heads.stage(stage);
      Vector raw[4];  // x low, x high, dy low, dy high; zeros where there is no head, x also for value
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
      // Value is copied as it is; what follows computes with x = 0 for it and is dropped at `continue`.
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
      // Everything of this stage is in registers now: it is filled again while the sums travel between lanes.
      heads.ask(stage);
      stage = (stage + 1) % kSplitStages;
      square = lanes_sum(square, kLanes);
      along = lanes_sum(along, kLanes);
      if (at.group == 2 || !at.here) continue;
      const float rstd = rstd_of(square, d, group.epsilon);
      // The factor of x: -rstd³ Σ(slope w x) / d. Two of the factors rstd come from x̂ = x rstd.
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

  // The ring's memory becomes that of the sums: no copy may still be on its way, and no warp in its last head.
  wait_copies<0>();
  __syncthreads();
  write_split_sums<T, d>(sums_q, sums_k, partials);
}

// Bounds the workspace: each block writes a row of partial sums.
int64_t most_split_blocks() { return int64_t{multiprocessors()} * 8; }

// Calls run.template operator()<d>() for a usual head size.
template <typename Run>
void for_usual_size(int64_t d, const Run& run) {
  if (d == 64) return run.template operator()<64>();
  if (d == 128) return run.template operator()<128>();
  run.template operator()<256>();
}

}  // namespace

void map_norms_cuda(const HeadsShape& shape, const Rotation& rotation, const Groups& groups, void* stream) {
  for_dtype(shape.dtype, [&]<typename T>(T) {
    for_usual_size(shape.head_dim, [&]<int d>() {
      constexpr int kHeads = 32 * kHeadsAtOnce / (d / 2 / kVector<T>);  // per warp
      const int64_t warps = (groups.heads + kHeads - 1) / kHeads;
      const auto blocks = static_cast<unsigned>((shape.tokens * warps * 32 + kThreads - 1) / kThreads);
      launch("map_heads", map_norms_kernel<T, d>, {blocks, kThreads, stream}, groups, rotation, shape.tokens);
    });
  });
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
  constexpr int64_t kTokens = kSplitThreads / 32;  // per block, at once
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
    return SumsOut{qkv.part[i].grad_weight, qkv.part[i].grad_weight_dtype, shape.head_dim};
  };
  column_sums_cuda(workspace, blocks, grad(0), grad(1), stream);
}

}  // namespace megalith::ops
