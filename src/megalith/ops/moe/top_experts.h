// Which experts each token goes to, and with what weight: what a router makes of its logits.
//
// Legend: t tokens, E experts, k experts a token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith::ops {

struct ExpertChoice {
  // What the weights are taken from, and, but for a bias, what experts are chosen by.
  enum class Score {
    kSoftmaxOfChosen,  // choose by the logits; softmax over the chosen ones
    kSoftmax,          // softmax over all experts
    kSigmoid
  };
  int64_t topk = 1;
  Score score = Score::kSoftmaxOfChosen;
  bool normalize = false;  // kSigmoid: chosen weights are divided by their sum
  double scaling = 1;      // multiplies the weights
  int64_t groups = 1;      // experts are in so many groups of equal size …
  int64_t group_topk = 1;  // … and a token chooses from the best so many
  int64_t group_best = 1;  // a group's score is the sum of its best so many experts'
};

struct TopExperts {
  at::Tensor experts;  // int64 [t, k], ascending
  at::Tensor weights;  // fp32 (fp64 for fp64 logits) [t, k], differentiable
};

// logits [t, E]; everything is computed in fp32 at least. `bias` fp32 [E] is added to the scores for choosing;
// undefined: none. Whoever has `decided` already (int64 [t, k]) gets its weights. Where scores tie, ATen's top-k
// decides; on CUDA, one pass over the logits, the first expert.
TopExperts top_experts(const at::Tensor& logits, const ExpertChoice& choice, const at::Tensor& bias = {},
                       const at::Tensor& decided = {});
// The places of the k largest of each row [t, E], ascending.
at::Tensor largest_places(const at::Tensor& scores, int64_t k);

}  // namespace megalith::ops
