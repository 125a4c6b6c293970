// Training towards a teacher (formulas in distillation/distillation_loss.h and kept_distillation_loss.h).
#pragma once

#include <cstdint>
#include <optional>

#include "megalith/config/enums.h"

namespace megalith::train {

// Named after the options in the comments.
struct DistillationSettings {
  config::KdLoss loss = config::KdLoss::kForwardKl;
  double beta = 0.5;         // kd_beta: the share of the teacher in the mixture; jsd only
  double temperature = 1.0;  // kd_temperature: divides the logits of both models
  double ratio = 1.0;        // kd_ratio: the share of the kd loss in the loss
  // For a teacher's files only.
  bool tail = true;                  // kd_tail: all tokens that the files do not keep are one class
  std::optional<int64_t> classes{};  // kd_top_k: likeliest tokens to use; std::nullopt: all that the files keep
};

}  // namespace megalith::train
