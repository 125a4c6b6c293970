// Converts options to the settings of training on preference pairs and on answers with verdicts.
#pragma once

#include "megalith/config/training_arguments.h"
#include "megalith/train/settings/preference_settings.h"

namespace megalith::run {

// Returns the loss and its coefficients.
train::PreferenceSettings preference_settings(const config::PreferenceConfig& preference);
train::KtoSettings kto_settings(const config::PreferenceConfig& preference);

}  // namespace megalith::run
