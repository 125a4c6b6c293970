#include "megalith/run/resolve/preference_settings.h"

namespace megalith::run {

train::PreferenceSettings preference_settings(const config::PreferenceConfig& preference) {
  return {.loss = preference.loss,
          .beta = preference.beta,
          .ftx = preference.ftx,
          .label_smoothing = preference.label_smoothing,
          .simpo_gamma = preference.simpo_gamma};
}

}  // namespace megalith::run
