// Routing: from a router's logits to the experts of each token and their weights.
//
// Legend: t tokens, E experts, k experts per token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

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

// The tokens of each expert, in token order, after dropping and padding, on the device of the tokens. The host learns
// no count unless padding makes them all equal.
//
//   experts of tokens 0, 1, 2 (k = 2)    {0 2}  {0 1}  {1 2}; expert 0 takes one token
//   map.token, first                     0 | 1 2 | 0 2, then the dropped choice: 1;  first 0 1 3 5
//   map.row                              {0 3}  {-1 1}  {2 4}
struct ExpertLists {
  at::Tensor chosen;      // int64 [t, k]: the expert of each choice, dropped ones included
  ops::RowMap map;        // rows by expert; with `dropping`, the tokens of dropped choices follow them
  at::Tensor first;       // int64 [E + 1]: expert e has rows first[e] … first[e+1]-1
  at::Tensor load;        // int64 [E]: tokens per expert without padding
  bool dropping = false;  // the number of rows is first[E], which only the device knows
  std::optional<int64_t> rows_per_expert = {};  // if padded: the rows of every expert

  int64_t tokens() const { return map.tokens(); }
  int64_t topk() const { return map.row.size(1); }
  int64_t experts() const { return first.size(0) - 1; }
};
// Lists the tokens of each expert. The host does not wait for the device.
ExpertLists list_tokens(const Routing& routing, const RouterShape& shape);
// Returns ⌈T k/E · factor⌉, the most tokens that an expert takes per rank.
int64_t expert_capacity(int64_t tokens, const RouterShape& shape);

}  // namespace megalith::nn
