// Lion (Chen et al., 2023) as a program would write a rule of its own. (The library has it, too: optim/rules/lion.h.)
//
//   p -= lr (sign(β₁m + (1-β₁)g) + wd p);  m = β₂m + (1-β₂)g
#pragma once

#include <ATen/ATen.h>

#include <memory>

#include "megalith/optim/rules/update_rule.h"

namespace megalith::testing {

class Lion : public optim::UpdateRule {
 public:
  Lion(double beta1, double beta2) : beta1_(beta1), beta2_(beta2) {}

  std::string name() const override { return "lion"; }
  std::vector<std::string> state_names() const override { return {"exp_avg"}; }
  std::vector<std::string> problems() const override {
    std::vector<std::string> found;
    optim::require_setting(found, beta1_ >= 0 && beta1_ < 1, "lion_beta1", beta1_, "at least 0 and below 1");
    optim::require_setting(found, beta2_ >= 0 && beta2_ < 1, "lion_beta2", beta2_, "at least 0 and below 1");
    return found;
  }

 private:
  void update(const optim::FlatElements& x, const ops::UpdateScalars& scalars) const override {
    const at::Tensor& momentum = x.states[0];
    const at::Tensor direction = (momentum * beta1_).add_(x.grad, 1 - beta1_).sign_();
    x.main.mul_(1 - scalars.lr * scalars.weight_decay).sub_(direction, scalars.lr);
    momentum.mul_(beta2_).add_(x.grad, 1 - beta2_);
  }

  double beta1_, beta2_;
};

inline std::shared_ptr<const optim::UpdateRule> lion(double beta1 = 0.9, double beta2 = 0.99) {
  return std::make_shared<Lion>(beta1, beta2);
}

}  // namespace megalith::testing
