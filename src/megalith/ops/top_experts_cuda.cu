// A warp a token: lane l has the logits of experts l, l + 32, … in registers. Legend: E experts, k experts a token.
#include <cmath>

#include "megalith/ops/cuda_math.cuh"
#include "megalith/ops/top_experts_internal.h"

namespace megalith::ops {

namespace {

using Score = ExpertChoice::Score;

constexpr int kThreads = 128;
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

template <typename T, int n>
__global__ void forward_kernel(ExpertRows rows, const float* bias, bool decided, int64_t* chosen, float* weights) {
  const int64_t token = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (token >= rows.tokens) return;
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
    launch("top_experts", forward_kernel<T, n>, {blocks, kThreads, stream}, rows, bias, decided, chosen, weights);
  });
}

void top_experts_backward_cuda(const ExpertRows& rows, const int64_t* chosen, const float* grad_weights,
                               void* grad_logits, void* stream) {
  if (rows.tokens == 0) return;
  for_experts(rows, [&]<typename T, int n>(unsigned blocks) {
    launch("top_experts_backward", backward_kernel<T, n>, {blocks, kThreads, stream}, rows, chosen, grad_weights,
           static_cast<T*>(grad_logits));
  });
}

}  // namespace megalith::ops
