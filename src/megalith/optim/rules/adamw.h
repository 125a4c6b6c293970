// AdamW (Loshchilov and Hutter, 2019) with the kernels of ops/update: one pass over all runs of a block.
#pragma once

#include "megalith/optim/rules/update_rule.h"

namespace megalith::optim {

// Its states are the first and second moment; weight decay is decoupled from the gradient. Fused.
class AdamW : public UpdateRule {
 public:
  // problems() judges the settings, not the constructor.
  explicit AdamW(const ops::AdamSettings& settings = {}) : settings_(settings) {}

  std::string name() const override { return "adam"; }
  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  std::vector<std::string> problems() const override;
  void update_runs(const FlatElements& block, std::span<const ops::UpdateRun> runs) const override;
  bool update_stored_runs(const StoredElements& block, std::span<const ops::UpdateRun> runs) const override;
  bool is_fused() const override { return true; }
  bool can_be_confined() const override { return true; }

 private:
  void update(const FlatElements& x, const ops::UpdateScalars& scalars) const override;

  ops::AdamSettings settings_;
};

}  // namespace megalith::optim
