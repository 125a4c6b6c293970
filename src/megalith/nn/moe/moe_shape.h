// The configuration of a mixture-of-experts layer, as plain data.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/ops/norm_rope/activation.h"

namespace megalith::nn {

// How a router turns logits into scores.
enum class ScoreFunction {
  kSoftmax,  // scores compete: they sum to 1
  kSigmoid   // each expert on its own, as in DeepSeek-V3
};

// A load-balancing loss: coeff · E/(k T²) Σ_e (Σ p_e) (count_e), where p are the scores over all experts.
struct BalanceLoss {
  // The tokens over which counts and scores are summed.
  enum class Kind {
    kBatch,     // aux_loss: over the tokens of a micro-batch
    kSequence,  // seq_aux_loss: for each sequence, averaged
    kGlobal     // global_aux_loss: counts of all replicas, averaged over the micro-batches of the step so far
  } kind = Kind::kBatch;
  double coeff = 0;
  bool operator==(const BalanceLoss&) const = default;
};

// How a router chooses and weights experts.
struct RouterShape {
  int64_t experts = 0;  // E, over all ranks
  int64_t topk = 0;     // k, experts per token
  ScoreFunction score = ScoreFunction::kSoftmax;
  bool pre_softmax = false;  // kSoftmax: over all experts before choosing, instead of over the chosen ones
  bool normalize = true;     // kSigmoid: chosen weights are divided by their sum
  double scaling = 1;        // multiplies the chosen weights
  int64_t groups = 1;        // number of equal groups of experts …
  int64_t group_topk = 1;    // … of which a token uses the best group_topk
  int64_t group_best = 0;    // a group's score sums its group_best highest experts; 0 = topk / group_topk
  bool expert_bias = false;  // a bias on the choice, not on the weights; adjusted against the load after each step
  double bias_update_rate = 1e-3;
  bool sinkhorn = false;  // choose by logits that Sinkhorn iterations balanced over the batch; training only

  std::optional<at::ScalarType> dtype;  // least dtype of the product; nullopt = the model's. Scores are at least fp32
  double jitter = 0;                    // training: the input is multiplied by random numbers in [1-jitter, 1+jitter]
  std::vector<BalanceLoss> losses;
  double z_coeff = 0;           // coefficient of the loss mean(logsumexp(logits)²)
  bool per_token_loss = false;  // losses are multiplied by the token count, because gradients are divided by it later

  std::optional<double> capacity_factor;  // an expert takes at most ⌈T k/E · factor⌉ tokens per rank; nullopt = all
  bool pad_to_capacity = false;           // fill up every expert to exactly that many
  bool drop_by_position = false;          // drop the last tokens beyond capacity instead of those of least weight
  bool replay = false;  // a recomputed layer repeats the choices of its first pass, regardless of its scores

  bool operator==(const RouterShape&) const = default;
};

// Sizes of one layer over all ranks.
struct MoeShape {
  RouterShape router;
  int64_t hidden = 0;
  int64_t width = 0;         // columns inside one expert
  int64_t shared_width = 0;  // columns of all shared experts together, which process every token; 0 = none
  bool shared_gate = false;  // their output is multiplied by sigmoid(x · gate)
  bool gated = true;         // SwiGLU and the like
  ops::Activation activation = ops::Activation::kSilu;
  Init init;      // for the router and the up projections
  Init out_init;  // for the down projections
};

// How the layer is executed; does not affect what it computes.
struct MoeOptions {
  // How tokens reach their experts; see dispatcher.h.
  enum class Dispatcher { kAllGather, kAllToAll } dispatcher = Dispatcher::kAllToAll;
  bool overlap_shared = false;        // compute shared experts while tokens are in flight; kAllToAll only
  bool fp8 = false;                   // where other products of the layer are in fp8, those of experts are, too
  bool recompute_activation = false;  // recompute the experts' activation in backward instead of keeping it
  bool recompute_shared = false;      // recompute the shared experts in backward
};

// Return one message per invalid setting, each with the allowed values; empty if all is valid. The experts are
// distributed over `ep` ranks, and each expert is split over `etp` ranks.
std::vector<std::string> problems(const RouterShape& router);
std::vector<std::string> problems(const MoeShape& shape, int ep, int etp);

}  // namespace megalith::nn
