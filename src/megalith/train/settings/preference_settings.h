// The losses of pairs of answers (formulas in preference/preference_loss.h), and of single ones.
#pragma once

#include <optional>

#include "megalith/config/enums.h"

namespace megalith::train {

// Named after the options in the comments. config::needs_reference says which losses compare with a reference model.
struct PreferenceSettings {
  config::PrefLoss loss = config::PrefLoss::kSigmoid;
  double beta = 0.1;           // pref_beta: how closely the policy is held to the reference
  double ftx = 0;              // pref_ftx: weight of the chosen answers' own loss, which is added
  double label_smoothing = 0;  // dpo_label_smoothing: share of pairs assumed to be swapped; config::smooths_pairs
  double simpo_gamma = 0.5;    // simpo_gamma: the target margin of simpo
  double discopop_tau = 0.05;  // discopop_tau: the temperature of discopop's change from one form to the other
  // ld_alpha: weight of the log-probabilities beyond the length of the pair's shorter answer; std::nullopt means 1.
  std::optional<double> ld_alpha{};
};

// The loss of an answer with a verdict (formula in preference/kto_loss.h).
struct KtoSettings {
  double beta = 0.1;           // pref_beta: how closely the policy is held to the reference
  double ftx = 0;              // pref_ftx: weight of the desirable answers' own loss, which is added
  double chosen_weight = 1;    // kto_chosen_weight: weight of desirable answers
  double rejected_weight = 1;  // kto_rejected_weight: weight of undesirable answers
};

}  // namespace megalith::train
