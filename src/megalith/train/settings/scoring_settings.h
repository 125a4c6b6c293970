// The losses of models that score sequences (formulas in scoring/reward_objective.h and scoring/label_objective.h).
#pragma once

#include "megalith/config/enums.h"

namespace megalith::train {

// Stage rm.
struct RewardSettings {
  double center_coefficient = 0;  // center_rewards_coefficient: weight of (r_c + r_w)^2
};

// Stage cls.
struct LabelSettings {
  config::ProblemType problem = config::ProblemType::kSingleLabel;
};

}  // namespace megalith::train
