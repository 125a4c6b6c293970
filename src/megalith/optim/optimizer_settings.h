// Settings of the optimizer, except for learning rate and weight decay, which the schedule sets.
// run::optimizer_settings makes them from the options.
#pragma once

#include <memory>

#include "megalith/optim/param_groups.h"
#include "megalith/optim/rules/adamw.h"

namespace megalith::optim {

// Rule, clipping, offloading and groups.
struct OptimizerSettings {
  std::shared_ptr<const UpdateRule> rule = std::make_shared<AdamW>();
  double clip_grad = 1.0;       // gradients with a larger global norm are scaled down to it; 0 disables clipping
  bool count_zeros = false;     // report StepResult::num_zeros
  double offload_fraction = 0;  // share of this rank's state that is kept and updated on the host
  GroupOptions groups;

  // Throws a ConfigError that lists every problem, under the names of the options.
  void validate() const;
};

}  // namespace megalith::optim
