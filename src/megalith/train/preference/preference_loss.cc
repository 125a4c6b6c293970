// The formulas of the header on tensors of all pairs at once. A micro-batch holds the chosen answers first, then the
// rejected ones, so both halves are views of one tensor, and the policy runs over them in one pass.
#include "megalith/train/preference/preference_loss.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <tuple>

#include "megalith/base/error.h"

namespace megalith::train {

namespace {

using config::PrefLoss;

// Values of the chosen and the rejected answers, fp32 [p] each.
struct Pair {
  at::Tensor chosen, rejected;
  at::Tensor difference() const { return chosen - rejected; }
};

// [2p] -> two views [p].
Pair split_pairs(const at::Tensor& scores) {
  const int64_t pairs = scores.size(0) / 2;
  return {scores.narrow(0, 0, pairs), scores.narrow(0, pairs, pairs)};
}

// log(1 - exp a) for a < 0, accurate at both ends: log1p loses digits for a near 0, expm1 for very negative a.
at::Tensor log_of_rest(const at::Tensor& a) {
  constexpr double kCertain = -1e-6;  // a mean probability of 1 would have infinite odds
  constexpr double kMinusLn2 = -0.6931471805599453;
  const at::Tensor x = a.clamp_max(kCertain);
  return at::where(x > kMinusLn2, at::log(-at::expm1(x)), at::log1p(-at::exp(x)));
}

// Sorts ascending: the quantiles of a micro-batch.
at::Tensor ascending(const at::Tensor& values) { return std::get<0>(at::sort(values)); }

// The losses `sigmoid` and `robust`, of β·d; also those of `aot`, whose d is another.
at::Tensor sigmoid_loss(const at::Tensor& scaled, const PreferenceSettings& how) {
  const double e = how.label_smoothing;
  const at::Tensor right = -at::log_sigmoid(scaled);
  if (e == 0) return right;
  const at::Tensor wrong = -at::log_sigmoid(-scaled);
  if (how.loss == PrefLoss::kRobust) return (right * (1 - e) - wrong * e) / (1 - 2 * e);
  return right * (1 - e) + wrong * e;
}

// KL of the policy's choice between the two answers, of β·d, from the choice that ε leaves.
at::Tensor exo_loss(const at::Tensor& scaled, double e) {
  const at::Tensor chosen = at::log_sigmoid(scaled), rejected = at::log_sigmoid(-scaled);
  return at::sigmoid(scaled) * (chosen - std::log1p(-e)) + at::sigmoid(-scaled) * (rejected - std::log(e));
}

// A logistic loss where βd is small, an exponential one where it is large.
at::Tensor discopop_loss(const at::Tensor& scaled, double tau) {
  const at::Tensor mix = at::sigmoid(scaled / tau);
  return -at::log_sigmoid(scaled) * (1 - mix) + at::exp(-scaled) * mix;
}

// The losses that compare each answer with the reference on its own. `gain` is g of the header, unscaled.
at::Tensor unpaired_loss(const Pair& gain, const PreferenceSettings& how) {
  const at::Tensor chosen = gain.chosen * how.beta, rejected = gain.rejected * how.beta;
  switch (how.loss) {
    case PrefLoss::kNcaPair:
      return -at::log_sigmoid(chosen) - 0.5 * at::log_sigmoid(-chosen) - 0.5 * at::log_sigmoid(-rejected);
    case PrefLoss::kBcoPair:
      return -at::log_sigmoid(chosen) - at::log_sigmoid(-rejected);
    case PrefLoss::kSppoHard:
      return at::square(gain.chosen - 0.5 / how.beta) + at::square(gain.rejected + 0.5 / how.beta);
    case PrefLoss::kApoZero:
      return at::sigmoid(-chosen) + at::sigmoid(rejected);
    case PrefLoss::kApoDown:
      return at::sigmoid(chosen) + at::sigmoid(rejected - chosen);
    default:
      throw InternalError(fmt::format("pref_loss {} has no formula", config::choice_name(how.loss)));
  }
}

}  // namespace

PreferenceTerms preference_terms(const AnswerScores& scores, const PreferenceSettings& how) {
  const bool compares = config::needs_reference(how.loss);
  check(!compares || scores.reference.defined(), "pref_loss {} without reference log-probabilities",
        config::choice_name(how.loss));
  const at::Tensor averages = scores.policy / scores.tokens;
  const Pair mean = split_pairs(averages);
  // Log-probabilities relative to the reference, or per token without one; rewards are β times these.
  const at::Tensor gains = compares ? scores.policy - scores.reference : averages;
  const Pair gain = split_pairs(gains);
  PreferenceTerms terms;
  switch (how.loss) {
    case PrefLoss::kSigmoid:
    case PrefLoss::kRobust:
      terms.losses = sigmoid_loss(gain.difference() * how.beta, how);
      break;
    case PrefLoss::kHinge:
      terms.losses = at::relu(1 - gain.difference() * how.beta);
      break;
    case PrefLoss::kIpo:
      terms.losses = at::square(split_pairs(gains / scores.tokens).difference() - 1 / (2 * how.beta));
      break;
    case PrefLoss::kOrpo:
      terms.odds = -at::log_sigmoid(mean.difference() - (log_of_rest(mean.chosen) - log_of_rest(mean.rejected)));
      terms.losses = terms.odds * how.beta - mean.chosen;
      terms.odds = terms.odds.detach();  // reported only: its gradient is already part of losses
      break;
    case PrefLoss::kSimpo:
      terms.losses = -at::log_sigmoid(mean.difference() * how.beta - how.simpo_gamma);
      break;
    case PrefLoss::kSigmoidNorm:
      terms.losses = -at::log_sigmoid(split_pairs(gains / scores.tokens).difference() * how.beta);
      break;
    case PrefLoss::kExoPair:
      terms.losses = exo_loss(gain.difference() * how.beta, how.label_smoothing);
      break;
    case PrefLoss::kAot:
      terms.losses = sigmoid_loss(
          (ascending(split_pairs(scores.policy).difference()) - ascending(split_pairs(scores.reference).difference())) *
              how.beta,
          how);
      break;
    case PrefLoss::kAotUnpaired:
      terms.losses = sigmoid_loss((ascending(gain.chosen) - ascending(gain.rejected)) * how.beta, how);
      break;
    case PrefLoss::kDiscopop:
      terms.losses = discopop_loss(gain.difference() * how.beta, how.discopop_tau);
      break;
    case PrefLoss::kNcaPair:
    case PrefLoss::kBcoPair:
    case PrefLoss::kSppoHard:
    case PrefLoss::kApoZero:
    case PrefLoss::kApoDown:
      terms.losses = unpaired_loss(gain, how);
      break;
  }
  // mean.chosen is a_c of the header: lowering the loss raises the probability of the chosen answers.
  if (how.ftx > 0) terms.losses = terms.losses - mean.chosen * how.ftx;
  terms.chosen = gain.chosen.detach() * how.beta;
  terms.rejected = gain.rejected.detach() * how.beta;
  terms.sft = -mean.chosen.detach();
  return terms;
}

}  // namespace megalith::train
