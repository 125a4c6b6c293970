// The losses of a router. Their gradients join those of the model's own loss through the routing weights, whose values
// they do not change.
//
// Legend: t tokens of this rank, E experts, s sequences.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "megalith/comm/group.h"
#include "megalith/nn/moe/moe_shape.h"

namespace megalith::nn {

// Returns x unchanged; backward adds `scale` times the gradient of `loss` (a scalar) to everything `loss` depends on.
at::Tensor attach_loss(const at::Tensor& x, const at::Tensor& loss, double scale);

// The ranks and tokens over which the counts of a balancing loss are taken.
struct BalanceScope {
  comm::Group group;    // ranks that hold parts of the same tokens (tp and cp); for kGlobal also all replicas
  at::Tensor sequence;  // int64 [t]: the sequence of each token; undefined if all belong to one
  int64_t sequences = 1;
  at::Tensor valid;  // bool [t]: tokens that count; undefined if all do
};

// Counts of a micro-batch summed over the scope's ranks in one collective: [s, E] choices and [s] tokens.
struct BalanceCounts {
  at::Tensor choices, tokens;
};
BalanceCounts count_choices(const at::Tensor& scores, const RouterShape& router, const BalanceScope& scope);

// Returns the scalar E/(k T²) Σ_e (Σ p_e)(count_e), averaged over the sequences. T is the mean number of tokens of the
// sequences, as in Megatron: longer sequences weigh more. p are the scores of this rank's tokens only, so that the sum
// over the group is the loss of all tokens.
at::Tensor balance_loss(const at::Tensor& scores, const BalanceCounts& counts, const RouterShape& router,
                        const BalanceScope& scope);
// Returns the scalar mean(logsumexp(logits)²) over this rank's valid tokens.
at::Tensor z_loss(const at::Tensor& logits, const at::Tensor& valid);

// Returns bias + rate · sign(mean - load); load fp32 [E] counts all ranks and micro-batches of the step.
at::Tensor updated_bias(const at::Tensor& bias, const at::Tensor& load, double rate);

}  // namespace megalith::nn
