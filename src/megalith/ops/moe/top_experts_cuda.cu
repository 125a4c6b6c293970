// Choice of experts on CUDA. Legend: t tokens, E experts, k experts per token.
//
// There are two families of kernels, and both read each logit once:
//   general  a warp per token; lane l has experts l, l + 32, ... in registers. The best is found k times by reductions
//            over the warp, and struck each time; then lane j < k holds the j-th choice.
//   plain    softmax over the largest logits, k <= 8, E = 32, 64, 128 or 256: 8 lanes per token, four tokens per warp.
//            Each lane has E / 8 consecutive experts, sorts them down to its 8 largest, and three rounds of shuffles
//            merge those of all lanes (bitonic networks, no branches):
//
//              lane        0            1            ...   7
//              experts     0 ... E/8-1  E/8 ... E/4-1      ... E-1
//
//   weights    softmax of chosen: w_c = exp(x_c) / Σ_chosen exp(x)
//              softmax:           p_c, with p the softmax over all experts
//              sigmoid:           σ(x_c) [/ Σ_chosen σ]
//   gradients  softmax of chosen: dx_c = w_c (s_c - Σ w s), with s the gradient of the weights times `scaling`
//              softmax:           dx_e = p_e (s_e [if chosen] - Σ_chosen p s)
//              sigmoid:           dx_c = σ_c (1 - σ_c) (s_c [- Σ σ s / Σ σ]) [/ Σ σ];  0 for other experts
//
//   plain, k = 3, E = 32, one lane's bits of `above` and `equal` (limit = third largest logit of the token):
//
//              logit       1.0  4.0  2.0  2.0        limit 2.0, so above = 0010, equal = 1100; if one place is left for
//              chosen           yes  yes             equal logits, the lower expert gets it
//
// Memory traffic: forward reads t E logits and writes t k choices (int64) and weights; backward also writes t E
// gradients. Measured on an H200 against a copy of as many bytes (docs/gpu.md), 16384 x 64 x 8: forward 1.02,
// backward 0.98.
#include <cmath>

#include "megalith/ops/kernel/cuda_math.cuh"
#include "megalith/ops/moe/top_experts_internal.h"

namespace megalith::ops {

namespace {

using Score = ExpertChoice::Score;

constexpr int kThreads = 128;
constexpr int kPlainThreads = 256;  // per block of the plain kernels
constexpr unsigned kAll = 0xffffffffU;
constexpr float kTiny = 1e-20F;  // keeps a sum of scores from being 0

// A candidate: its score and its number (of an expert, or of a group).
struct Best {
  float value;
  int place;
};
// Returns the larger one; of equal ones, that of the lower place.
__device__ inline Best better(Best a, Best b) {
  return b.value > a.value || (b.value == a.value && b.place < a.place) ? b : a;
}
// Maps floats (not NaN) to unsigned numbers in the same order, both zeros to the same one, so that the warp's integer
// reductions can compare them; from_ordered() maps back.
__device__ inline unsigned ordered(float x) {
  const unsigned bits = __float_as_uint(x + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ inline float from_ordered(unsigned key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7fffffffU : ~key);
}
// Returns the best of the warp on every lane: two reductions, one for the value and one for the lowest place with it.
__device__ inline Best warp_best(Best x) {
  const unsigned mine = ordered(x.value), top = __reduce_max_sync(kAll, mine);
  const auto place = __reduce_min_sync(kAll, mine == top ? static_cast<unsigned>(x.place) : ~0U);
  return {from_ordered(top), static_cast<int>(place)};
}

// Returns the best of the experts in [begin, end) on every lane; a place past the last expert if all are -inf or NaN.
template <int n>
__device__ inline Best best_of(const float (&rank)[n], int lane, int begin, int end) {
  Best mine{-INFINITY, 1 << 30};
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const int expert = i * 32 + lane;
    if (expert >= begin && expert < end) mine = better(mine, {rank[i], expert});
  }
  return warp_best(mine);
}
// Takes an expert out of the ranking. Only the lane that holds it writes; all lanes compare, since an index known only
// at run time would move `rank` from registers to memory.
template <int n>
__device__ inline void strike(float (&rank)[n], int lane, int expert) {
#pragma unroll
  for (int i = 0; i < n; ++i)
    if (i * 32 + lane == expert) rank[i] = -INFINITY;
}

// Sets experts outside the token's best groups to -inf. Lane g holds the score of group g (at most 32 groups).
template <int n>
__device__ inline void limit_to_groups(float (&rank)[n], int lane, int experts, const ExpertChoice& choice) {
  const int groups = static_cast<int>(choice.groups), width = experts / groups;
  float score = -INFINITY;  // sum of the best scores in group number `lane`
  for (int g = 0; g < groups; ++g) {
    float left[n];
#pragma unroll
    for (int i = 0; i < n; ++i) left[i] = rank[i];
    float sum = 0;
    for (int64_t j = 0; j < choice.group_best; ++j) {
      const Best best = best_of(left, lane, g * width, (g + 1) * width);
      sum += best.value;
      strike(left, lane, best.place);
    }
    if (lane == g) score = sum;
  }
  unsigned chosen = 0;  // one bit per group
  for (int64_t j = 0; j < choice.group_topk; ++j) {
    const Best best = warp_best({lane < groups ? score : -INFINITY, lane});
    chosen |= 1U << best.place;
    if (lane == best.place) score = -INFINITY;
  }
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const int expert = i * 32 + lane;
    if (expert < experts && (chosen >> (expert / width) & 1U) == 0) rank[i] = -INFINITY;
  }
}

// The logits of a token, and maximum and sum for the softmax over all of them: lane l has experts l, l + 32, …, so that
// a warp reads 32 neighbors at once.
template <int n>
struct Token {
  float logit[n];
  float max = 0, sum = 1;

  template <typename T>
  __device__ Token(const T* from, int lane, int experts, bool softmax) {
#pragma unroll
    for (int i = 0; i < n; ++i) logit[i] = i * 32 + lane < experts ? to_float(from[i * 32 + lane]) : -INFINITY;
    if (!softmax) return;
    float top = -INFINITY, total = 0;
#pragma unroll
    for (int i = 0; i < n; ++i) top = fmaxf(top, logit[i]);
    max = warp_max(top);
#pragma unroll
    for (int i = 0; i < n; ++i) total += expf(logit[i] - max);
    sum = warp_sum(total);
  }
  // Returns the score of a logit, before any normalization over the chosen experts.
  __device__ float score(float x, Score kind) const {
    if (kind == Score::kSigmoid) return 1 / (1 + expf(-x));
    return kind == Score::kSoftmax ? expf(x - max) / sum : x;
  }
};

// The general choice for one token, by a whole warp: k rounds of best_of and strike, 2 k reductions over the warp. With
// `decided`, chosen [t, k] is read instead and only the weights are computed. Choices are written in ascending order of
// expert, as the CPU does, so that later sums have the same order on both.
template <typename T, int n>
__device__ inline void choose(const ExpertRows& rows, int64_t token, const float* bias, bool decided, int64_t* chosen,
                              float* weights) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const ExpertChoice& choice = rows.choice;
  const int experts = static_cast<int>(rows.experts), k = static_cast<int>(choice.topk);
  const T* logits = static_cast<const T*>(rows.logits) + token * rows.experts;
  const Token<n> all(logits, lane, experts, choice.score == Score::kSoftmax);
  // Lane j < k has the j-th best expert, and its position among the chosen ones in order of number.
  int own_expert = -1, order = lane;
  if (decided) {
    if (lane < k) own_expert = static_cast<int>(chosen[token * k + lane]);
  } else {
    float rank[n];
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const int expert = i * 32 + lane;
      rank[i] = expert < experts ? all.score(all.logit[i], choice.score) : -INFINITY;
      if (bias != nullptr && expert < experts) rank[i] += bias[expert];
    }
    if (choice.group_topk < choice.groups) limit_to_groups(rank, lane, experts, choice);
    for (int j = 0; j < k; ++j) {
      const Best best = best_of(rank, lane, 0, experts);
      strike(rank, lane, best.place);
      if (lane == j) own_expert = min(best.place, experts - 1);  // with NaN logits some expert must be named
    }
    order = 0;  // rank by counting: how many chosen experts have a lower number
    for (int j = 0; j < k; ++j) {
      const int other = __shfl_sync(kAll, own_expert, j);
      order += other < own_expert || (other == own_expert && j < lane) ? 1 : 0;
    }
    if (lane < k) chosen[token * k + order] = own_expert;
  }
  float weight = lane < k ? all.score(to_float(logits[own_expert]), choice.score) : 0;
  if (choice.score == Score::kSoftmaxOfChosen) {
    const float top = warp_max(lane < k ? weight : -INFINITY);
    weight = lane < k ? expf(weight - top) : 0;
    weight /= warp_sum(weight);
  } else if (choice.score == Score::kSigmoid && choice.normalize) {
    weight /= warp_sum(weight) + kTiny;
  }
  if (lane < k) weights[token * k + order] = weight * static_cast<float>(choice.scaling);
}

// One warp per token, four tokens per block.
template <typename T, int n>
__global__ void forward_kernel(ExpertRows rows, const float* bias, bool decided, int64_t* chosen, float* weights) {
  const int64_t token = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (token < rows.tokens) choose<T, n>(rows, token, bias, decided, chosen, weights);
}

// Orders two numbers, the larger one first.
__device__ inline void put_in_order(float& first, float& second) {
  const float larger = fmaxf(first, second);
  second = fminf(first, second);
  first = larger;
}
// Sorts a bitonic sequence (one that rises and then falls, or the reverse), the largest first.
template <int n>
__device__ inline void sort_bitonic(float* x) {
  if constexpr (n > 1) {
#pragma unroll
    for (int i = 0; i < n / 2; ++i) put_in_order(x[i], x[i + n / 2]);
    sort_bitonic<n / 2>(x);
    sort_bitonic<n / 2>(x + n / 2);
  }
}
// Sorts any numbers, the largest first: sorts both halves, then merges them as a bitonic sequence. 8 numbers take 24
// exchanges, all on registers with indices known to the compiler.
template <int n>
__device__ inline void sort(float* x) {
  if constexpr (n > 1) {
    sort<n / 2>(x);
    sort<n / 2>(x + n / 2);
#pragma unroll
    for (int i = 0; i < n / 2; ++i) put_in_order(x[i], x[n - 1 - i]);
    sort_bitonic<n / 2>(x);
    sort_bitonic<n / 2>(x + n / 2);
  }
}

// Lanes per token of the plain kernels, and their largest k. Both are 8 so that after three rounds of merging every
// lane holds the token's 8 largest, and lane j can take the j-th choice.
constexpr int kGroup = 8;

// Sum and maximum over the lanes of a group.
__device__ inline float group_sum(float x) {
#pragma unroll
  for (int other = kGroup / 2; other > 0; other /= 2) x += __shfl_xor_sync(kAll, x, other);
  return x;
}
__device__ inline float group_max(float x) {
#pragma unroll
  for (int other = kGroup / 2; other > 0; other /= 2) x = fmaxf(x, __shfl_xor_sync(kAll, x, other));
  return x;
}
// Returns the sum over the lanes of the group before this one.
__device__ inline unsigned group_sum_before(unsigned x, int lane) {
  unsigned before = 0;
#pragma unroll
  for (int other = 1; other < kGroup; other *= 2) {
    const unsigned theirs = __shfl_xor_sync(kAll, x, other);
    if ((lane & other) != 0) before += theirs;
    x += theirs;
  }
  return before;
}

// The kGroup largest of the numbers seen so far, the largest first.
struct Largest {
  float x[kGroup];

  // Merges with other numbers in the same order: the larger of x[i] and others[7 - i] are the 8 largest of all 16, as a
  // bitonic sequence.
  __device__ void merge(const float (&others)[kGroup]) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] = fmaxf(x[i], others[kGroup - 1 - i]);
    sort_bitonic<kGroup>(x);
  }
  // The largest of a lane's own numbers.
  template <int n>
  __device__ explicit Largest(const float (&from)[n]) {
#pragma unroll
    for (int start = 0; start < n; start += kGroup) {
      float part[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) part[i] = start + i < n ? from[start + i] : -INFINITY;
      sort<kGroup>(part);
      if (start > 0) {
        merge(part);
      } else {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) x[i] = part[i];
      }
    }
  }
  // Makes this the largest of all lanes of the group, on each of them.
  __device__ void merge_lanes() {
#pragma unroll
    for (int other = 1; other < kGroup; other *= 2) {
      float theirs[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) theirs[i] = __shfl_xor_sync(kAll, x[i], other);
      merge(theirs);
    }
  }
};

// The plain choice of at most 8 from E = 32 · n experts: 8 lanes per token, each with 4 · n consecutive experts. Once
// the k-th largest logit (`limit`) is known, an expert is chosen if its logit is above it or, lower experts first,
// equal to it while there is room. Choices are written in order of expert, so that the place of a choice is the number
// of those before it: population counts of bit masks, summed over the lanes before.
template <typename T, int n>
__global__ void __launch_bounds__(kPlainThreads)
    plain_forward_kernel(ExpertRows rows, int64_t* chosen, float* weights) {
  constexpr int kGroups = kPlainThreads / kGroup, kEach = 4 * n;  // groups per block, experts per lane
  struct Choice {
    int expert;
    float logit;
  };
  __shared__ Choice shared[kGroups][kGroup];
  const int thread = static_cast<int>(threadIdx.x), group = thread / kGroup, j = thread % kGroup;
  const int64_t token = int64_t{blockIdx.x} * kGroups + group;
  const int64_t first = token - group % (32 / kGroup);  // first token of the warp
  if (first >= rows.tokens) return;                     // whole warps: shuffles need all lanes
  const int k = static_cast<int>(rows.choice.topk);
  float logit[kEach];
  load_all(static_cast<const T*>(rows.logits) + min(token, rows.tokens - 1) * rows.experts + j * kEach, logit);
#pragma unroll
  for (int i = 0; i < kEach; ++i) logit[i] = fmaxf(logit[i], -INFINITY);  // NaN becomes -inf
  Largest best(logit);
  best.merge_lanes();
  // The k-th largest logit, by a loop with constant indices: an index known only at run time would move x to memory.
  float limit = best.x[0];
  int room = k;  // for logits at the limit
#pragma unroll
  for (int i = 1; i < kGroup; ++i)
    if (i < k) limit = best.x[i];
#pragma unroll
  for (int i = 0; i < kGroup; ++i)
    if (best.x[i] > limit) --room;

  unsigned above = 0, equal = 0;  // one bit per expert of the lane
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    above |= logit[i] > limit ? 1U << i : 0;
    equal |= logit[i] == limit ? 1U << i : 0;
  }
  // Both counts in one word: one prefix sum. Equal logits beyond the room lose their bits, the highest experts first.
  const unsigned before = group_sum_before(static_cast<unsigned>(__popc(above) | __popc(equal) << 16), j);
  const int equal_before = min(static_cast<int>(before >> 16), room);
  for (int left = __popc(equal) + equal_before - room; left > 0; --left)
    equal ^= 1U << (31 - __clz(static_cast<int>(equal)));
  int slot = static_cast<int>(before & 0xffffU) + equal_before;
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (((above | equal) >> i & 1U) != 0) shared[group][slot++] = {j * kEach + i, logit[i]};
  __syncwarp();
  // Lane j has the j-th choice: its weight is exp(x - max) over the sum of the group.
  const Choice own_choice = shared[group][min(j, k - 1)];
  const float raised = j < k ? expf(own_choice.logit - best.x[0]) : 0;
  const float weight = raised * (static_cast<float>(rows.choice.scaling) / group_sum(raised));
  const bool has = j < k && token < rows.tokens;
  const bool enough = limit > -INFINITY;
  if (has && enough) {
    chosen[token * k + j] = own_choice.expert;
    weights[token * k + j] = weight;
  }
  // Tokens with fewer than k numbers above -inf (NaN, infinities) are left to the general choice, one after the other.
  const unsigned rest = __ballot_sync(kAll, has && !enough);
  for (int u = 0; rest != 0 && u < 32 / kGroup; ++u)
    if ((rest >> (u * kGroup) & 1U) != 0) choose<T, n>(rows, first + u, nullptr, false, chosen, weights);
}

// The general backward, a warp per token: lane j < k computes the gradient of the j-th choice. All lanes write the row
// (zeros, or for kSoftmax the part of all experts), then the chosen elements are written over.
template <typename T, int n>
__global__ void backward_kernel(ExpertRows rows, const int64_t* chosen, const float* grad_weights, T* grad_logits) {
  const int64_t token = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (token >= rows.tokens) return;
  const ExpertChoice& choice = rows.choice;
  const int experts = static_cast<int>(rows.experts), k = static_cast<int>(choice.topk);
  const T* logits = static_cast<const T*>(rows.logits) + token * rows.experts;
  T* grads = grad_logits + token * rows.experts;
  const Token<n> all(logits, lane, experts, choice.score == Score::kSoftmax);
  const int own_expert = lane < k ? static_cast<int>(chosen[token * k + lane]) : 0;
  const float slope = lane < k ? grad_weights[token * k + lane] * static_cast<float>(choice.scaling) : 0;
  const float score = lane < k ? all.score(to_float(logits[own_expert]), choice.score) : 0;
  // The three cases of `gradients` at the top of the file.
  float grad = 0, others = 0;  // gradient of this lane's choice; of every other expert, divided by its score
  if (choice.score == Score::kSoftmaxOfChosen) {
    const float top = warp_max(lane < k ? score : -INFINITY);
    const float raised = lane < k ? expf(score - top) : 0;
    const float weight = raised / warp_sum(raised);
    grad = weight * (slope - warp_sum(weight * slope));
  } else if (choice.score == Score::kSoftmax) {
    others = -warp_sum(score * slope);
    grad = score * (slope + others);
  } else {
    const float total = choice.normalize ? warp_sum(score) + kTiny : 1;
    const float along = choice.normalize ? warp_sum(score * slope) / total : 0;
    grad = (slope - along) / total * score * (1 - score);
  }
#pragma unroll
  for (int i = 0; i < n; ++i)
    if (i * 32 + lane < experts)
      grads[i * 32 + lane] =
          from_float<T>(choice.score == Score::kSoftmax ? others * all.score(all.logit[i], choice.score) : 0);
  __syncwarp();
  if (lane < k) grads[own_expert] = from_float<T>(grad);
}

// Backward of the plain choice: 8 lanes per token, lane j has its j-th choice. A row is copied to shared memory, where
// the chosen logits are picked, and its gradient is put together there, so that memory is read and written 16 bytes per
// lane.
template <typename T, int n>
__global__ void __launch_bounds__(kPlainThreads)
    plain_backward_kernel(ExpertRows rows, const int64_t* chosen, const float* grad_weights, T* grad_logits) {
  constexpr int kGroups = kPlainThreads / kGroup;
  constexpr int kVectors = 32 * n / kVector<T>, kEach = (kVectors + kGroup - 1) / kGroup;  // per row, per lane
  __shared__ uint4 shared[kGroups][kVectors];
  const int thread = static_cast<int>(threadIdx.x), group = thread / kGroup, j = thread % kGroup;
  const int64_t token = int64_t{blockIdx.x} * kGroups + group, here = min(token, rows.tokens - 1);
  if (token - group % 4 >= rows.tokens) return;  // the whole warp
  const int k = static_cast<int>(rows.choice.topk);
  const bool has = j < k;
  const int own_expert = has ? static_cast<int>(chosen[here * k + j]) : 0;
  const float slope = has ? grad_weights[here * k + j] * static_cast<float>(rows.choice.scaling) : 0;
  uint4* const row = shared[group];
  auto* const cell = reinterpret_cast<T*>(row) + own_expert;
  const auto* const logits = static_cast<const uint4*>(rows.logits) + here * kVectors;
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (const int at = i * kGroup + j; at < kVectors) row[at] = logits[at];
  __syncwarp();
  const float logit = has ? to_float(*cell) : -INFINITY;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (const int at = i * kGroup + j; at < kVectors) row[at] = uint4{0, 0, 0, 0};
  const float top = group_max(logit), raised = has ? expf(logit - top) : 0;
  const float weight = raised / group_sum(raised);
  const float grad = weight * (slope - group_sum(weight * slope));
  __syncwarp();
  if (has) *cell = from_float<T>(grad);
  __syncwarp();
  if (token >= rows.tokens) return;
  auto* const grads = reinterpret_cast<uint4*>(grad_logits) + token * kVectors;
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (const int at = i * kGroup + j; at < kVectors) grads[at] = row[at];
}

// Whether the plain kernels can take a call: softmax over at most 8 largest logits of 32 · n experts, aligned rows.
bool is_plain(const ExpertRows& rows, int n) {
  return rows.choice.score == Score::kSoftmaxOfChosen && rows.choice.topk <= kGroup &&
         rows.experts == int64_t{32} * n && aligned(rows.logits);
}
// 32 tokens per block of the plain kernels.
Launch plain_launch(int64_t tokens, void* stream) {
  constexpr int64_t kTokens = kPlainThreads / kGroup;
  return {static_cast<unsigned>((tokens + kTokens - 1) / kTokens), kPlainThreads, stream};
}

// Calls run.template operator()<T, n>(blocks), with n experts per lane of a warp: 32 n is E rounded up to 32, 64, 128,
// 256 or 1024.
template <typename Run>
void for_experts(const ExpertRows& rows, const Run& run) {
  const auto blocks = static_cast<unsigned>((rows.tokens + kThreads / 32 - 1) / (kThreads / 32));
  for_dtype(rows.dtype, [&]<typename T>(T) {
    if (rows.experts <= 32) return run.template operator()<T, 1>(blocks);
    if (rows.experts <= 64) return run.template operator()<T, 2>(blocks);
    if (rows.experts <= 128) return run.template operator()<T, 4>(blocks);
    if (rows.experts <= 256) return run.template operator()<T, 8>(blocks);
    run.template operator()<T, 32>(blocks);
  });
}

}  // namespace

void top_experts_cuda(const ExpertRows& rows, const float* bias, bool decided, int64_t* chosen, float* weights,
                      void* stream) {
  if (rows.tokens == 0) return;
  for_experts(rows, [&]<typename T, int n>(unsigned blocks) {
    if constexpr (n <= 8) {
      if (is_plain(rows, n) && bias == nullptr && !decided && rows.choice.group_topk >= rows.choice.groups)
        return launch("top_experts, plain", plain_forward_kernel<T, n>, plain_launch(rows.tokens, stream), rows, chosen,
                      weights);
    }
    launch("top_experts", forward_kernel<T, n>, {blocks, kThreads, stream}, rows, bias, decided, chosen, weights);
  });
}

void top_experts_backward_cuda(const ExpertRows& rows, const int64_t* chosen, const float* grad_weights,
                               void* grad_logits, void* stream) {
  if (rows.tokens == 0) return;
  for_experts(rows, [&]<typename T, int n>(unsigned blocks) {
    if constexpr (n <= 8) {
      if (is_plain(rows, n) && aligned(grad_logits))
        return launch("top_experts_backward, plain", plain_backward_kernel<T, n>, plain_launch(rows.tokens, stream),
                      rows, chosen, grad_weights, static_cast<T*>(grad_logits));
    }
    launch("top_experts_backward", backward_kernel<T, n>, {blocks, kThreads, stream}, rows, chosen, grad_weights,
           static_cast<T*>(grad_logits));
  });
}

}  // namespace megalith::ops
