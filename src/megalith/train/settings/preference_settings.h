// What a pair of answers costs (preference/preference_loss.h has the formulas).
#pragma once

#include "megalith/config/choices.h"

namespace megalith::train {

struct PreferenceSettings {
  config::PrefLoss loss = config::PrefLoss::kSigmoid;
  double beta = 0.1;           // pref_beta: how far the policy is held to the reference
  double ftx = 0;              // pref_ftx: weight of the chosen answers' own loss, which is added
  double label_smoothing = 0;  // dpo_label_smoothing: the share of pairs taken to be swapped; sigmoid and robust
  double simpo_gamma = 0.5;    // simpo_gamma: the margin that simpo asks for
};

}  // namespace megalith::train
