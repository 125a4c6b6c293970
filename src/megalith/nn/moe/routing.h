// Routing: from a router's logits to the experts of each token and their weights.
//
// Legend: t tokens, E experts, k experts per token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "megalith/nn/moe/moe_shape.h"
#include "megalith/ops/moe/permute.h"

namespace megalith::nn {

// The chosen experts of each token.
struct Routing {
  at::Tensor experts;  // int64 [t, k], ascending
  at::Tensor weights;  // fp32 (fp64 for fp64 logits) [t, k], differentiable
};

// Chooses experts. `bias` fp32 [E], which may be undefined, is added to the scores for choosing only. `training`
// enables Sinkhorn if the shape asks for it. With `decided` (int64 [t, k]) only the weights of that choice are
// computed. Ties are broken by ATen's top-k.
Routing choose_experts(const at::Tensor& logits, const RouterShape& shape, const at::Tensor& bias, bool training,
                       const at::Tensor& decided = {});

// Returns the differentiable scores [t, E] over all experts for the balancing losses: softmax, or sigmoid divided by
// its sum.
at::Tensor balance_scores(const at::Tensor& logits, const RouterShape& shape);
// Returns the one-hot sum of the plain top-k of those scores, ignoring bias, groups and dropping: fp32 [t, E], without
// autograd history.
at::Tensor balance_counts(const at::Tensor& scores, int64_t topk);

// The tokens of each expert, in token order, after dropping and padding. Either `on_device` is set, or `first`, `token`
// and `place` are.
struct ExpertLists {
  std::vector<int64_t> first;  // [E + 1]: expert e has entries first[e] … first[e+1]-1
  std::vector<int64_t> token;
  std::vector<int64_t> place;  // index among the token's k choices; -1 for padding of weight 0
  int64_t tokens = 0, topk = 0;
  int64_t dropped = 0;  // choices that did not fit
  // On CUDA, if nothing is dropped and one rank has all experts: the host knows only the three counts above.
  std::optional<ops::SortedChoices> on_device = {};

  int64_t experts() const { return (on_device ? on_device->first.size(0) : static_cast<int64_t>(first.size())) - 1; }
  // Returns the entries of an expert; only without `on_device`.
  int64_t count(int64_t expert) const { return first[expert + 1] - first[expert]; }
};
// Lists the tokens of each expert. On CUDA the host waits for the device to read experts and weights, unless `one_rank`
// holds all experts: then the lists are built on the device without a wait.
ExpertLists list_tokens(const Routing& routing, const RouterShape& shape, bool one_rank = false);
// Returns ⌈T k/E · factor⌉, the most tokens that an expert takes per rank.
int64_t expert_capacity(int64_t tokens, const RouterShape& shape);

// Returns the map from tokens to rows for the given sequence of experts, in which each occurs `copies` times. The map's
// `row` is [t, k · copies], with the copies of a choice side by side. On the CPU.
ops::RowMap rows_of(const ExpertLists& lists, const std::vector<int64_t>& experts, int64_t copies);

// Returns the tokens per expert without padding, fp32 [E] on `device`, that of the tokens.
at::Tensor load(const ExpertLists& lists, at::Device device = at::kCPU);

}  // namespace megalith::nn
