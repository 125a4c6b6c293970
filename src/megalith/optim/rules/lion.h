// Lion (Chen et al., 2023, "Symbolic discovery of optimization algorithms"): the sign of a momentum.
//
//   p -= lr (sign(β₁ m + (1 - β₁) g) + wd p);  m = β₂ m + (1 - β₂) g
#pragma once

#include "megalith/optim/rules/update_rule.h"

namespace megalith::optim {

// Settings of Lion, with Megatron's defaults.
struct LionSettings {
  double beta1 = 0.95;  // share of the momentum in the direction
  double beta2 = 0.98;  // decay of the momentum
};

// Its only state is the momentum. All elements move by the same amount, so its learning rate is a third to a tenth of
// AdamW's, and its weight decay larger by the same factor.
class Lion : public UpdateRule {
 public:
  // problems() judges the settings, not the constructor.
  explicit Lion(const LionSettings& settings = {}) : settings_(settings) {}

  std::string name() const override { return "lion"; }
  // The momentum. The name is fixed: checkpoints use it.
  std::vector<std::string> state_names() const override { return {"exp_avg"}; }
  std::vector<std::string> problems() const override;

 private:
  void update(const FlatElements& x, const ops::UpdateScalars& scalars) const override;

  LionSettings settings_;
};

}  // namespace megalith::optim
