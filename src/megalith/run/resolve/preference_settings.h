// Converts options to the settings of losses with a second model: pairs of answers, answers with verdicts,
// distillation.
#pragma once

#include "megalith/config/training_arguments.h"
#include "megalith/train/settings/distillation_settings.h"
#include "megalith/train/settings/preference_settings.h"

namespace megalith::run {

// Return the loss and its coefficients.
train::PreferenceSettings preference_settings(const config::PreferenceConfig& preference);
train::KtoSettings kto_settings(const config::PreferenceConfig& preference);
train::DistillationSettings distillation_settings(const config::DistillationConfig& distillation);

}  // namespace megalith::run
