// What the optimizer does, apart from learning rate and weight decay, which the schedule sets. run::optimizer_settings
// makes it from options.
#pragma once

#include <memory>

#include "megalith/optim/param_groups.h"
#include "megalith/optim/rules/adamw.h"

namespace megalith::optim {

struct OptimizerSettings {
  std::shared_ptr<const UpdateRule> rule = std::make_shared<AdamW>();
  double clip_grad = 1.0;       // gradients are scaled to this global norm when theirs is larger; 0: never
  bool count_zeros = false;     // report num_zeros
  double offload_fraction = 0;  // of this rank's state: kept and updated on the host
  GroupOptions groups;

  // Throws ConfigError with every problem, under the options' names.
  void validate() const;
};

}  // namespace megalith::optim
