// Stochastic gradient descent with momentum; weight decay is added to the gradient.
#pragma once

#include "megalith/optim/rules/update_rule.h"

namespace megalith::optim {

// Its only state is the momentum buffer. Fused.
class Sgd : public UpdateRule {
 public:
  // problems() judges the settings, not the constructor.
  explicit Sgd(const ops::SgdSettings& settings = {}) : settings_(settings) {}

  std::string name() const override { return "sgd"; }
  // The momentum. The name is fixed: existing checkpoints use it.
  std::vector<std::string> state_names() const override { return {"exp_avg"}; }
  std::vector<std::string> problems() const override;
  bool is_fused() const override { return true; }

 private:
  void update(const FlatElements& x, const ops::UpdateScalars& scalars) const override;

  ops::SgdSettings settings_;
};

}  // namespace megalith::optim
