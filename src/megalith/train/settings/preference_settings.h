// The loss of a pair of answers (formulas in preference/preference_loss.h).
#pragma once

#include "megalith/config/enums.h"

namespace megalith::train {

// Named after the options in the comments. config::needs_reference says which losses compare with a reference model.
struct PreferenceSettings {
  config::PrefLoss loss = config::PrefLoss::kSigmoid;
  double beta = 0.1;           // pref_beta: how closely the policy is held to the reference
  double ftx = 0;              // pref_ftx: weight of the chosen answers' own loss, which is added
  double label_smoothing = 0;  // dpo_label_smoothing: share of pairs assumed to be swapped; sigmoid and robust
  double simpo_gamma = 0.5;    // simpo_gamma: the target margin of simpo
};

}  // namespace megalith::train
