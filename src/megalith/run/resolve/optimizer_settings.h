// Converts options to the settings with which gradients are reduced, scaled and applied.
#pragma once

#include <memory>

#include "megalith/config/training_arguments.h"
#include "megalith/optim/distributed_data_parallel.h"
#include "megalith/optim/grad_scaler.h"
#include "megalith/optim/optimizer_settings.h"

namespace megalith::run {

// Returns the rule of this name with its settings, which are not checked (UpdateRule::problems). Muon has
// none: it works beside a rule.
std::shared_ptr<const optim::UpdateRule> make_rule(config::OptimizerKind name, const config::OptimizerConfig& options);

// Returns the optimizer settings without those from other options: the count of zeros and the rates of LoRA+
// (update_settings in trainer_settings.h).
optim::OptimizerSettings optimizer_settings(const config::OptimizerConfig& optimizer,
                                            const config::MuonConfig& muon = {});

// Returns the settings of the gradient buffers of the first chunk of a stage, the one that is cut into buckets
// (optim::settings_of_chunk returns those of the others). `args` have gone through validate(): ddp_num_buckets and
// ddp_bucket_size are not both given.
optim::DdpSettings ddp_settings(const config::TrainingArguments& args);

// With fp16, the scale is loss_scale if given and dynamic otherwise; in other precisions it is 1. Throws ConfigError
// naming invalid options.
optim::GradScaler grad_scaler(const config::PrecisionConfig& precision);

}  // namespace megalith::run
