// The losses of a router: values whose gradients are added to those of the model's own loss where the router's weights
// are used, without changing what they are.
//
// Legend: t tokens of this rank, E experts, s sequences.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "megalith/comm/group.h"
#include "megalith/nn/moe/moe_shape.h"

namespace megalith::nn {

// x, unchanged; backward adds `scale` times the gradient of `loss` (a scalar) to everything that it depends on.
at::Tensor attach_loss(const at::Tensor& x, const at::Tensor& loss, double scale);

// What the counts of a balancing loss are taken over.
struct BalanceScope {
  comm::Group group;    // ranks that hold parts of the same tokens (tp and cp); for kGlobal all replicas, too
  at::Tensor sequence;  // int64 [t]: which of `sequences` a token belongs to; undefined: all to one
  int64_t sequences = 1;
  at::Tensor valid;  // bool [t]: tokens that count; undefined: all
};

// Counts of a micro-batch over the scope's ranks, one collective: [s, E] choices and [s] tokens.
struct BalanceCounts {
  at::Tensor choices, tokens;
};
BalanceCounts count_choices(const at::Tensor& scores, const RouterShape& router, const BalanceScope& scope);

// E/(k T²) Σ_e (Σ p_e)(count_e), a mean over the sequences; p the scores of this rank's tokens only, so that the sum
// over the group is the loss of all. A scalar.
at::Tensor balance_loss(const at::Tensor& scores, const BalanceCounts& counts, const RouterShape& router,
                        const BalanceScope& scope);
// mean(logsumexp(logits)²) over this rank's valid tokens. A scalar.
at::Tensor z_loss(const at::Tensor& logits, const at::Tensor& valid);

// bias + rate · sign(mean - load), load fp32 [E] over all ranks and micro-batches of the step.
at::Tensor updated_bias(const at::Tensor& bias, const at::Tensor& load, double rate);

}  // namespace megalith::nn
