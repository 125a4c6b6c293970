// What a mixture-of-experts layer is made of, as plain data.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/ops/norm_rope/activation.h"

namespace megalith::nn {

enum class ScoreFunction { kSoftmax, kSigmoid };

// A loss that keeps experts equally busy: coeff · E/(k T²) Σ_e (Σ p_e) (count_e), with p the scores over all experts.
struct BalanceLoss {
  enum class Kind {
    kBatch,     // aux_loss: over the tokens of a micro-batch
    kSequence,  // seq_aux_loss: for each sequence, averaged
    kGlobal     // global_aux_loss: counts of all replicas, averaged over the micro-batches of the step so far
  } kind = Kind::kBatch;
  double coeff = 0;
  bool operator==(const BalanceLoss&) const = default;
};

struct RouterShape {
  int64_t experts = 0;
  int64_t topk = 0;
  ScoreFunction score = ScoreFunction::kSoftmax;
  bool pre_softmax = false;  // softmax: over all experts, then choose; otherwise over the chosen ones
  bool normalize = true;     // sigmoid: chosen weights are divided by their sum
  double scaling = 1;        // multiplies the chosen weights
  int64_t groups = 1;        // experts are in so many groups of equal size …
  int64_t group_topk = 1;    // … and a token chooses from the best so many
  int64_t group_best = 0;    // a group's score is the sum of its best so many experts'; 0: topk / group_topk
  bool expert_bias = false;  // a bias on the choice, not on the weights, moved after each step against the load
  double bias_update_rate = 1e-3;
  bool sinkhorn = false;  // choose by the logits balanced over the batch; training only

  std::optional<at::ScalarType> dtype;  // of the router's product; empty: that of the model. Scores are fp32 at least
  double jitter = 0;                    // training: the input is multiplied by numbers from [1 - jitter, 1 + jitter]
  std::vector<BalanceLoss> losses;
  double z_coeff = 0;           // loss coeff · mean(logsumexp(logits)²)
  bool per_token_loss = false;  // gradients are divided by the number of tokens later: losses are multiplied by it

  std::optional<double> capacity_factor;  // an expert takes at most ⌈T k/E · factor⌉ tokens of a rank; empty: all
  bool pad_to_capacity = false;           // and exactly so many
  bool drop_by_position = false;          // tokens beyond it: the last ones, in place of those with the least weight
  bool replay = false;  // a recomputed layer takes the decisions of its first pass, whatever its scores say

  bool operator==(const RouterShape&) const = default;
};

struct MoeShape {
  RouterShape router;
  int64_t hidden = 0;
  int64_t width = 0;         // of an expert
  int64_t shared_width = 0;  // of all shared experts together, which see every token; 0: none
  bool shared_gate = false;  // their output is multiplied by sigmoid(x · gate)
  bool gated = true;         // SwiGLU and the like
  ops::Activation activation = ops::Activation::kSilu;
  Init init;      // of the router and of the projections up
  Init out_init;  // of the projections down
};

// How it is run.
struct MoeOptions {
  enum class Dispatcher { kAllGather, kAllToAll } dispatcher = Dispatcher::kAllToAll;
  bool overlap_shared = false;        // shared experts are computed while tokens travel; kAllToAll
  bool recompute_activation = false;  // the experts' activation is computed twice instead of kept
  bool recompute_shared = false;      // the shared experts are
};

// Everything that does not fit; each names what is allowed. `ep` and `etp`: ranks that share the experts, and each of
// them.
std::vector<std::string> problems(const RouterShape& router);
std::vector<std::string> problems(const MoeShape& shape, int ep, int etp);

}  // namespace megalith::nn
