#include "megalith/run/resolve/preference_settings.h"

namespace megalith::run {

train::PreferenceSettings preference_settings(const config::PreferenceConfig& preference) {
  return {.loss = preference.loss,
          .beta = preference.beta,
          .ftx = preference.ftx,
          .label_smoothing = preference.label_smoothing,
          .simpo_gamma = preference.simpo_gamma,
          .discopop_tau = preference.discopop_tau,
          .ld_alpha = preference.ld_alpha};
}

train::KtoSettings kto_settings(const config::PreferenceConfig& preference) {
  return {.beta = preference.beta,
          .ftx = preference.ftx,
          .chosen_weight = preference.kto_chosen_weight,
          .rejected_weight = preference.kto_rejected_weight};
}

train::RewardSettings reward_settings(const config::ScoringConfig& scoring) {
  return {.center_coefficient = scoring.center_rewards_coefficient};
}

train::DistillationSettings distillation_settings(const config::DistillationConfig& distillation) {
  return {.loss = distillation.loss,
          .beta = distillation.beta,
          .temperature = distillation.temperature,
          .ratio = distillation.ratio,
          .tail = distillation.tail,
          .classes = distillation.top_k};
}

}  // namespace megalith::run
