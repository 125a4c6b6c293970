// A warp a token: lane l has the logits of experts l, l + 32, … in registers. For the plain choice, softmax over the
// largest logits, there are kernels of their own. Legend: E experts, k experts a token.
#include <cmath>

#include "megalith/ops/cuda_math.cuh"
#include "megalith/ops/top_experts_internal.h"

namespace megalith::ops {

namespace {

using Score = ExpertChoice::Score;

constexpr int kThreads = 128;
constexpr int kPlainThreads = 256;  // of the kernels for the plain choice
constexpr unsigned kAll = 0xffffffffU;
constexpr float kTiny = 1e-20F;  // keeps a sum of scores from being 0

struct Best {
  float value;
  int place;
};
// The larger one; of equal ones the first.
__device__ inline Best better(Best a, Best b) {
  return b.value > a.value || (b.value == a.value && b.place < a.place) ? b : a;
}
// Unsigned numbers in the order of floats that are no NaN; both zeros are the same.
__device__ inline unsigned ordered(float x) {
  const unsigned bits = __float_as_uint(x + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ inline float from_ordered(unsigned key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7fffffffU : ~key);
}
__device__ inline Best warp_best(Best x) {
  const unsigned mine = ordered(x.value), top = __reduce_max_sync(kAll, mine);
  const auto place = __reduce_min_sync(kAll, mine == top ? static_cast<unsigned>(x.place) : ~0U);
  return {from_ordered(top), static_cast<int>(place)};
}

// The best of the experts in [begin, end), on every lane; behind the last one when all are -inf or NaN.
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
template <int n>
__device__ inline void strike(float (&rank)[n], int lane, int expert) {
#pragma unroll
  for (int i = 0; i < n; ++i)
    if (i * 32 + lane == expert) rank[i] = -INFINITY;
}

// -inf for experts outside of the token's best groups.
template <int n>
__device__ inline void limit_to_groups(float (&rank)[n], int lane, int experts, const ExpertChoice& choice) {
  const int groups = static_cast<int>(choice.groups), width = experts / groups;
  float score = -INFINITY;  // of group number `lane`
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
  unsigned chosen = 0;
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

// A token's logits, and what softmax over all of them needs.
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
  // The score of a logit before anything that looks at the other chosen ones.
  __device__ float score(float x, Score kind) const {
    if (kind == Score::kSigmoid) return 1 / (1 + expf(-x));
    return kind == Score::kSoftmax ? expf(x - max) / sum : x;
  }
};

// By the warp.
template <typename T, int n>
__device__ inline void choose(const ExpertRows& rows, int64_t token, const float* bias, bool decided, int64_t* chosen,
                              float* weights) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const ExpertChoice& choice = rows.choice;
  const int experts = static_cast<int>(rows.experts), k = static_cast<int>(choice.topk);
  const T* logits = static_cast<const T*>(rows.logits) + token * rows.experts;
  const Token<n> all(logits, lane, experts, choice.score == Score::kSoftmax);
  int mine = -1, order = lane;  // lane j < k has the j-th choice, and its place among them by number
  if (decided) {
    if (lane < k) mine = static_cast<int>(chosen[token * k + lane]);
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
      if (lane == j) mine = min(best.place, experts - 1);
    }
    order = 0;
    for (int j = 0; j < k; ++j) {
      const int other = __shfl_sync(kAll, mine, j);
      order += other < mine || (other == mine && j < lane) ? 1 : 0;
    }
    if (lane < k) chosen[token * k + order] = mine;
  }
  float weight = lane < k ? all.score(to_float(logits[mine]), choice.score) : 0;
  if (choice.score == Score::kSoftmaxOfChosen) {
    const float top = warp_max(lane < k ? weight : -INFINITY);
    weight = lane < k ? expf(weight - top) : 0;
    weight /= warp_sum(weight);
  } else if (choice.score == Score::kSigmoid && choice.normalize) {
    weight /= warp_sum(weight) + kTiny;
  }
  if (lane < k) weights[token * k + order] = weight * static_cast<float>(choice.scaling);
}

template <typename T, int n>
__global__ void forward_kernel(ExpertRows rows, const float* bias, bool decided, int64_t* chosen, float* weights) {
  const int64_t token = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (token < rows.tokens) choose<T, n>(rows, token, bias, decided, chosen, weights);
}

// n experts of a token that a lane has, the best one first, of equal ones the lower.
template <int n>
struct Heads {
  unsigned key[n];     // in the order of logits; 0: not to be chosen, being taken already, NaN or -inf
  unsigned where = 0;  // which of the lane's experts each key is: 4 bits apiece, the first one lowest
  unsigned taken = 0;  // a bit for each of the lane's experts

  __device__ explicit Heads(const float (&logit)[n]) {
    unsigned place[n];
#pragma unroll
    for (int i = 0; i < n; ++i) {
      key[i] = logit[i] > -INFINITY ? ordered(logit[i]) : 0;
      place[i] = static_cast<unsigned>(i);
    }
#pragma unroll
    for (int end = n - 1; end > 0; --end)
#pragma unroll
      for (int i = 0; i < end; ++i) {
        const bool swap = key[i + 1] > key[i];
        const unsigned low = key[i], high = key[i + 1], a = place[i], b = place[i + 1];
        key[i] = swap ? high : low;
        key[i + 1] = swap ? low : high;
        place[i] = swap ? b : a;
        place[i + 1] = swap ? a : b;
      }
#pragma unroll
    for (int i = 0; i < n; ++i) where |= place[i] << (4 * i);
  }
  __device__ void take_first() {
    taken |= 1U << (where & 15U);
    where >>= 4;
#pragma unroll
    for (int i = 0; i + 1 < n; ++i) key[i] = key[i + 1];
    key[n - 1] = 0;
  }
};

// The plain choice from E == 32 · n experts, of which lane l has n · l … n · l + n - 1. A round is one maximum over the
// lanes' best ones and one vote, of two tokens a warp side by side. What is chosen is a bit in the lane that has it: as
// choices are written in the order of experts, its place is the number of bits before it.
template <typename T, int n>
__global__ void __launch_bounds__(kPlainThreads, n <= 2 ? 8 : 5)  // as many as have registers
    plain_forward_kernel(ExpertRows rows, int64_t* chosen, float* weights) {
  constexpr int kTokens = 2;
  const int lane = static_cast<int>(threadIdx.x) % 32, k = static_cast<int>(rows.choice.topk);
  const int64_t first = (int64_t{blockIdx.x} * kPlainThreads + threadIdx.x) / 32 * kTokens;
  if (first >= rows.tokens) return;
  float logit[kTokens][n];
#pragma unroll
  for (int u = 0; u < kTokens; ++u)
    load<n>(static_cast<const T*>(rows.logits) + min(first + u, rows.tokens - 1) * (32 * n) + lane * n, logit[u]);
  Heads<n> heads[kTokens] = {Heads<n>(logit[0]), Heads<n>(logit[1])};
  unsigned best[kTokens], last[kTokens];
  for (int round = 0; round < k; ++round) {
#pragma unroll
    for (int u = 0; u < kTokens; ++u) last[u] = __reduce_max_sync(kAll, heads[u].key[0]);
#pragma unroll
    for (int u = 0; u < kTokens; ++u) {
      if (round == 0) best[u] = last[u];
      const unsigned equal = __ballot_sync(kAll, heads[u].key[0] == last[u]);
      if ((equal & -equal) == 1U << lane) heads[u].take_first();  // the first lane has the lower expert
    }
  }
#pragma unroll
  for (int u = 0; u < kTokens; ++u) {
    if (first + u >= rows.tokens) return;
    if (last[u] == 0) {  // too few numbers above -inf
      choose<T, n>(rows, first + u, nullptr, false, chosen, weights);
      continue;
    }
    const float top = from_ordered(best[u]);
    float raised[n], sum = 0;
    int place = 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const bool is_chosen = (heads[u].taken >> i & 1U) != 0;
      raised[i] = is_chosen ? expf(logit[u][i] - top) : 0;
      sum += raised[i];
      place += __popc(__ballot_sync(kAll, is_chosen) & ((1U << lane) - 1));
    }
    const float factor = static_cast<float>(rows.choice.scaling) / warp_sum(sum);
#pragma unroll
    for (int i = 0; i < n; ++i)
      if ((heads[u].taken >> i & 1U) != 0) {
        chosen[(first + u) * k + place] = lane * n + i;
        weights[(first + u) * k + place] = raised[i] * factor;
        ++place;
      }
  }
}

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
  const int mine = lane < k ? static_cast<int>(chosen[token * k + lane]) : 0;
  const float slope = lane < k ? grad_weights[token * k + lane] * static_cast<float>(choice.scaling) : 0;
  const float score = lane < k ? all.score(to_float(logits[mine]), choice.score) : 0;
  float grad = 0, others = 0;  // of this lane's choice; of every other expert, over its score
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
  if (lane < k) grads[mine] = from_float<T>(grad);
}

// Over 8 neighbouring lanes.
__device__ inline float group_sum(float x) {
#pragma unroll
  for (int other = 4; other > 0; other /= 2) x += __shfl_xor_sync(kAll, x, other);
  return x;
}
__device__ inline float group_max(float x) {
#pragma unroll
  for (int other = 4; other > 0; other /= 2) x = fmaxf(x, __shfl_xor_sync(kAll, x, other));
  return x;
}

// The same for the plain choice of at most 8 from E == 32 · n experts: 8 lanes a token, lane j its j-th choice. Their
// logits are picked, and the gradient is put together, in shared memory, so that rows are read and written 16 bytes a
// lane.
template <typename T, int n>
__global__ void __launch_bounds__(kPlainThreads)
    plain_backward_kernel(ExpertRows rows, const int64_t* chosen, const float* grad_weights, T* grad_logits) {
  constexpr int kGroup = 8, kGroups = kPlainThreads / kGroup;
  constexpr int kVectors = 32 * n / kVector<T>, kEach = (kVectors + kGroup - 1) / kGroup;  // of a row; of a lane
  __shared__ uint4 shared[kGroups][kVectors];
  const int thread = static_cast<int>(threadIdx.x), group = thread / kGroup, j = thread % kGroup;
  const int64_t token = int64_t{blockIdx.x} * kGroups + group, here = min(token, rows.tokens - 1);
  if (token - group % 4 >= rows.tokens) return;  // the whole warp
  const int k = static_cast<int>(rows.choice.topk);
  const bool has = j < k;
  const int mine = has ? static_cast<int>(chosen[here * k + j]) : 0;
  const float slope = has ? grad_weights[here * k + j] * static_cast<float>(rows.choice.scaling) : 0;
  uint4* const row = shared[group];
  auto* const cell = reinterpret_cast<T*>(row) + mine;
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

// Softmax over the largest logits, from whole vectors of 32 · n experts.
bool is_plain(const ExpertRows& rows, int n) {
  return rows.choice.score == Score::kSoftmaxOfChosen && rows.experts == int64_t{32} * n && aligned(rows.logits);
}

// run.template operator()<T, n>(blocks)
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
    if constexpr (n <= 4) {
      if (is_plain(rows, n) && bias == nullptr && !decided && rows.choice.group_topk >= rows.choice.groups) {
        constexpr int64_t kTokens = kPlainThreads / 32 * 2;
        return launch("top_experts, plain", plain_forward_kernel<T, n>,
                      {static_cast<unsigned>((rows.tokens + kTokens - 1) / kTokens), kPlainThreads, stream}, rows,
                      chosen, weights);
      }
    }
    launch("top_experts", forward_kernel<T, n>, {blocks, kThreads, stream}, rows, bias, decided, chosen, weights);
  });
}

void top_experts_backward_cuda(const ExpertRows& rows, const int64_t* chosen, const float* grad_weights,
                               void* grad_logits, void* stream) {
  if (rows.tokens == 0) return;
  for_experts(rows, [&]<typename T, int n>(unsigned blocks) {
    if constexpr (n <= 8) {
      if (is_plain(rows, n) && rows.choice.topk <= 8 && aligned(grad_logits)) {
        constexpr int64_t kTokens = kPlainThreads / 8;
        return launch("top_experts_backward, plain", plain_backward_kernel<T, n>,
                      {static_cast<unsigned>((rows.tokens + kTokens - 1) / kTokens), kPlainThreads, stream}, rows,
                      chosen, grad_weights, static_cast<T*>(grad_logits));
      }
    }
    launch("top_experts_backward", backward_kernel<T, n>, {blocks, kThreads, stream}, rows, chosen, grad_weights,
           static_cast<T*>(grad_logits));
  });
}

}  // namespace megalith::ops
