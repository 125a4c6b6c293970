// Which experts each token goes to, and with what weight: the arithmetic of a router behind its logits.
//
// Legend: t tokens, E experts, k experts a token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "megalith/nn/moe/moe_shape.h"
#include "megalith/ops/moe/permute.h"

namespace megalith::nn {

struct Routing {
  at::Tensor experts;  // int64 [t, k], ascending
  at::Tensor weights;  // fp32 (fp64 for fp64 logits) [t, k], differentiable
};

// The router's choice. `bias` fp32 [E] is added to the scores for choosing; undefined: none. `training`: sinkhorn,
// where asked for. Whoever has `decided` already (int64 [t, k]) gets its weights. Where scores tie, ATen's top-k
// decides.
Routing choose_experts(const at::Tensor& logits, const RouterShape& shape, const at::Tensor& bias, bool training,
                       const at::Tensor& decided = {});

// Scores over all experts for the balancing losses, differentiable: softmax, or sigmoid over its sum. [t, E]
at::Tensor balance_scores(const at::Tensor& logits, const RouterShape& shape);
// One-hot sum of the plain top-k of those scores: no bias, groups or dropping. [t, E], fp32, without history.
at::Tensor balance_counts(const at::Tensor& scores, int64_t topk);

// The tokens of each expert, in token order, after dropping and filling up. `on_device`, or `first`, `token` and
// `place`.
struct ExpertLists {
  std::vector<int64_t> first;  // [E + 1]: expert e has entries first[e] … first[e+1]-1
  std::vector<int64_t> token;
  std::vector<int64_t> place;  // which of the token's k choices it is; -1: a filler, of weight 0
  int64_t tokens = 0, topk = 0;
  int64_t dropped = 0;  // choices that did not fit
  // On CUDA, where nothing is dropped and one rank has all experts: the host knows no more than the numbers above.
  std::optional<ops::SortedChoices> on_device = {};

  int64_t experts() const { return (on_device ? on_device->first.size(0) : static_cast<int64_t>(first.size())) - 1; }
  int64_t count(int64_t expert) const { return first[expert + 1] - first[expert]; }
};
// Reads experts and weights (a wait for the device on CUDA). `one_rank` has all experts: on CUDA the lists are then
// made on the device, and nobody waits.
ExpertLists list_tokens(const Routing& routing, const RouterShape& shape, bool one_rank = false);
// ⌈T k/E · factor⌉
int64_t expert_capacity(int64_t tokens, const RouterShape& shape);

// Rows for a series of experts, one after the other; an expert may occur `copies` times in it, all the same number of
// times. The map's `row` is [t, k · copies]: the copies of a choice stand side by side. On the CPU.
ops::RowMap rows_of(const ExpertLists& lists, const std::vector<int64_t>& experts, int64_t copies);

// How many tokens each expert gets, fillers not counted; fp32 [E], on `device`, that of the tokens.
at::Tensor load(const ExpertLists& lists, at::Device device = at::kCPU);

}  // namespace megalith::nn
