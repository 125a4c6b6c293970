#include "megalith/optim/optimizer_settings.h"

#include <cmath>

#include "megalith/base/error.h"

namespace megalith::optim {

void OptimizerSettings::validate() const {
  std::vector<std::string> problems;
  const auto require = [&problems](bool good, const char* option, double value, const char* allowed) {
    if (!good) problems.push_back(fmt::format("{} is {}; it must be {}", option, value, allowed));
  };
  const auto below_one = [](double x) { return x >= 0 && x < 1; };  // false for NaN
  if (kind == Kind::kAdam) {
    require(below_one(adam.beta1), "adam_beta1", adam.beta1, "at least 0 and below 1");
    require(below_one(adam.beta2), "adam_beta2", adam.beta2, "at least 0 and below 1");
    require(adam.epsilon > 0 && std::isfinite(adam.epsilon), "adam_epsilon", adam.epsilon, "positive");
  } else {
    require(below_one(sgd.momentum), "sgd_momentum", sgd.momentum, "at least 0 and below 1");
  }
  require(clip_grad >= 0 && std::isfinite(clip_grad), "max_grad_norm", clip_grad, "positive, or 0 for no clipping");
  require(offload_fraction >= 0 && offload_fraction <= 1, "optimizer_offload_fraction", offload_fraction,
          "between 0 and 1");
  for (const LrMultiplier& m : groups.multipliers)
    require(m.factor >= 0 && std::isfinite(m.factor), "a learning-rate multiplier", m.factor, "at least 0");
  check<ConfigError>(problems.empty(), "{}", fmt::join(problems, "; "));
}

OptimizerSettings optimizer_settings(const config::OptimizerConfig& config) {
  OptimizerSettings s;
  s.kind =
      config.optimizer == config::OptimizerKind::kSgd ? OptimizerSettings::Kind::kSgd : OptimizerSettings::Kind::kAdam;
  s.adam = {.beta1 = config.adam_beta1, .beta2 = config.adam_beta2, .epsilon = config.adam_epsilon};
  s.sgd = {.momentum = config.sgd_momentum};
  s.clip_grad = config.max_grad_norm;
  s.offload_fraction = config.cpu_offload ? config.offload_fraction : 0;
  s.groups.decoupled_lr = config.decoupled_lr.has_value();
  s.groups.decay_qk_norms = config.apply_wd_to_qk_layernorm;
  return s;
}

}  // namespace megalith::optim
