// Training towards a teacher (formulas in distillation/distillation_loss.h).
#pragma once

#include "megalith/config/enums.h"

namespace megalith::train {

// Named after the options in the comments.
struct DistillationSettings {
  config::KdLoss loss = config::KdLoss::kForwardKl;
  double beta = 0.5;         // kd_beta: the share of the teacher in the mixture; jsd only
  double temperature = 1.0;  // kd_temperature: divides the logits of both models
  double ratio = 1.0;        // kd_ratio: the share of the kd loss in the loss
};

}  // namespace megalith::train
