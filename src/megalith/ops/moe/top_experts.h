// The router's decision: which experts each token goes to, and with what weight.
//
// Legend: t tokens, E experts, k experts per token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith::ops {

// How a router chooses.
struct ExpertChoice {
  // The score of an expert. Experts are ranked by it (plus a bias, if any), and weights are taken from it (without).
  enum class Score {
    kSoftmaxOfChosen,  // the logit; weights are the softmax over the chosen logits
    kSoftmax,          // softmax over all experts
    kSigmoid           // sigmoid of the logit
  };
  int64_t topk = 1;  // k
  Score score = Score::kSoftmaxOfChosen;
  bool normalize = false;  // kSigmoid: the chosen weights are divided by their sum
  double scaling = 1;      // multiplies the weights
  int64_t groups = 1;      // number of groups of equal size that experts are in
  int64_t group_topk = 1;  // groups from which a token may choose: those with the best scores
  int64_t group_best = 1;  // number of best experts whose sum is the score of a group
};

// The result of the choice.
struct TopExperts {
  at::Tensor experts;  // int64 [t, k], ascending
  at::Tensor weights;  // fp32 (fp64 for fp64 logits) [t, k], differentiable
};

// Chooses experts from logits [t, E], in fp32 at least. `bias`, fp32 [E], is added to the scores for choosing only; it
// may be undefined. A caller that has chosen already passes `decided`, int64 [t, k], and gets the weights of those.
// Ties are broken as ATen's top-k does, on CUDA (one pass over the logits) in favor of the first expert.
TopExperts top_experts(const at::Tensor& logits, const ExpertChoice& choice, const at::Tensor& bias = {},
                       const at::Tensor& decided = {});
// Returns the indices of the k largest scores of each row of [t, E], int64 [t, k], in ascending order of index.
at::Tensor largest_places(const at::Tensor& scores, int64_t k);

}  // namespace megalith::ops
