// Plain tensor operations on pieces of bounded size: the update is bound by memory, and reads little more than a fused
// kernel would.
#include "megalith/optim/rules/lion.h"

#include <ATen/ATen.h>

namespace megalith::optim {

std::vector<std::string> Lion::problems() const {
  std::vector<std::string> found;
  const auto below_one = [](double x) { return x >= 0 && x < 1; };  // false for NaN
  require_setting(found, below_one(settings_.beta1), "lion_beta1", settings_.beta1, "at least 0 and below 1");
  require_setting(found, below_one(settings_.beta2), "lion_beta2", settings_.beta2, "at least 0 and below 1");
  return found;
}

void Lion::update(const FlatElements& x, const ops::UpdateScalars& scalars) const {
  const at::Tensor& momentum = x.states[0];
  const at::Tensor direction = momentum.lerp(x.grad, 1 - settings_.beta1).sign_();
  x.main.mul_(1 - scalars.lr * scalars.weight_decay).sub_(direction, scalars.lr);
  momentum.lerp_(x.grad, 1 - settings_.beta2);
}

}  // namespace megalith::optim
