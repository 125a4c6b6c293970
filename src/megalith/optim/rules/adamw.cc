// Per element and step the fused kernel reads main, gradient and two moments, and writes main, the moments and, for a
// 16-bit model, the parameter; ops/update has the formula and the kernels.
#include "megalith/optim/rules/adamw.h"

#include <cmath>

#include "megalith/ops/update/stored_adam.h"

namespace megalith::optim {

namespace {

// States are in the order of state_names().
ops::UpdateTensors adam_tensors(const FlatElements& x) {
  return {.main = x.main,
          .grad = x.grad,
          .exp_avg = x.states[0],
          .exp_avg_sq = x.states[1],
          .param = x.param,
          .gate = x.gate,
          .multiprocessors = x.multiprocessors};
}

}  // namespace

std::vector<std::string> AdamW::problems() const {
  std::vector<std::string> found;
  const auto below_one = [](double x) { return x >= 0 && x < 1; };  // false for NaN
  require_setting(found, below_one(settings_.beta1), "adam_beta1", settings_.beta1, "at least 0 and below 1");
  require_setting(found, below_one(settings_.beta2), "adam_beta2", settings_.beta2, "at least 0 and below 1");
  require_setting(found, settings_.epsilon > 0 && std::isfinite(settings_.epsilon), "adam_epsilon", settings_.epsilon,
                  "positive");
  return found;
}

void AdamW::update_runs(const FlatElements& block, std::span<const ops::UpdateRun> runs) const {
  ops::adam_update_runs(adam_tensors(block), settings_, runs);
}

bool AdamW::update_stored_runs(const StoredElements& block, std::span<const ops::UpdateRun> runs) const {
  return ops::adam_update_stored({.main = block.main,
                                  .grad = block.grad,
                                  .exp_avg = block.states[0],
                                  .exp_avg_sq = block.states[1],
                                  .param = block.param,
                                  .gate = block.gate,
                                  .multiprocessors = block.multiprocessors},
                                 settings_, runs);
}

void AdamW::update(const FlatElements& x, const ops::UpdateScalars& scalars) const {
  ops::adam_update(adam_tensors(x), settings_, scalars);
}

}  // namespace megalith::optim
