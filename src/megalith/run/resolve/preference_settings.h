// Converts options to the settings of losses other than that of next tokens: pairs of answers, answers with verdicts,
// scores of sequences, distillation.
#pragma once

#include "megalith/config/training_arguments.h"
#include "megalith/train/settings/distillation_settings.h"
#include "megalith/train/settings/preference_settings.h"
#include "megalith/train/settings/scoring_settings.h"

namespace megalith::run {

// Return the loss and its coefficients.
train::PreferenceSettings preference_settings(const config::PreferenceConfig& preference);
train::KtoSettings kto_settings(const config::PreferenceConfig& preference);
train::RewardSettings reward_settings(const config::ScoringConfig& scoring);
train::DistillationSettings distillation_settings(const config::DistillationConfig& distillation);

}  // namespace megalith::run
