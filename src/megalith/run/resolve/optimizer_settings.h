// From options to how gradients are reduced, scaled and applied.
#pragma once

#include <memory>

#include "megalith/config/training_arguments.h"
#include "megalith/optim/distributed_data_parallel.h"
#include "megalith/optim/grad_scaler.h"
#include "megalith/optim/optimizer_settings.h"

namespace megalith::run {

// The rule that the option `optimizer` names, with its settings. They are not checked: see UpdateRule::problems.
std::shared_ptr<const optim::UpdateRule> make_rule(const config::OptimizerConfig& optimizer);

// The optimizer without what other options add to it: the counting of zeros, the rates of LoRA+ (update_settings in
// trainer_settings.h).
optim::OptimizerSettings optimizer_settings(const config::OptimizerConfig& optimizer);

// The gradient buffers of the first chunk of the first stage, the one that is cut into buckets
// (optim::settings_of_chunk gives those of the others). `args` after validate(): ddp_num_buckets and ddp_bucket_size
// are not both given.
optim::DdpSettings ddp_settings(const config::TrainingArguments& args);

// With fp16, loss_scale where it is given and a dynamic scale otherwise; 1 in other precisions. Throws ConfigError
// naming the options that cannot be.
optim::GradScaler grad_scaler(const config::PrecisionConfig& precision);

}  // namespace megalith::run
