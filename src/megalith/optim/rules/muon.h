// Muon (Jordan et al., 2024): momentum whose update of each weight matrix is orthogonalized, as Megatron-LM does it.
// torch.optim.Muon is the same with coefficients kSimple, nesterov, and as scale kShapeScaling, or kSpectral with an
// extra_scale of 0.2 where it matches the root mean square of AdamW's updates.
//
//   m = β m + (1 - β) g                        the momentum, one number per element
//   u = m, or with nesterov (1 - β) g + β m
//   O = newton_schulz(u)                       whole matrices (ops/update/newton_schulz.h)
//   p -= lr (s O + wd p)                       s = scale(rows, columns)
//
// Only the second to last line looks at more than one element at a time. So the others are elementwise rules over the
// flat buffers, like AdamW, and MatrixUpdate (matrix_update.h) works between them: on gradient buffers, which hold g, u
// and s O in turn.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "megalith/config/enums.h"
#include "megalith/ops/update/newton_schulz.h"
#include "megalith/optim/rules/update_rule.h"

namespace megalith::optim {

// Settings of Muon under the names of the options, with Megatron's defaults.
struct MuonSettings {
  double momentum = 0.95;
  bool nesterov = false;
  bool split_qkv = true;  // query, key and value are matrices of their own; otherwise one, as the layer fuses them
  config::MuonScale scale = config::MuonScale::kSpectral;
  double extra_scale = 1;
  config::MuonTpMode tp_mode = config::MuonTpMode::kBlockwise;
  config::MuonCoefficients coefficients = config::MuonCoefficients::kQuintic;
  int steps = 5;               // steps of the iteration
  bool fp32_products = false;  // otherwise products are in bf16
};

// Updates the weight matrices of a model (nn::is_matrix); another rule updates the rest. Immutable; any
// thread may use it.
class Muon {
 public:
  // problems() judges the settings, not the constructor.
  explicit Muon(const MuonSettings& settings = {});

  const MuonSettings& settings() const { return settings_; }
  // As those of an UpdateRule: the name in checkpoints, which they must not change, and the names of the states.
  static std::string name() { return "muon"; }
  static std::vector<std::string> state_names() { return {"exp_avg"}; }
  std::vector<std::string> problems() const;

  // The elementwise halves of a step. momentum() takes m as FlatElements::main and overwrites `grad` with u; apply()
  // takes p as main and s O as `grad`.
  const UpdateRule& momentum() const { return *momentum_; }
  const UpdateRule& apply() const { return *apply_; }

  // The middle of a step: the iteration, and the factor s of an orthogonalized matrix.
  const ops::NewtonSchulz& iteration() const { return iteration_; }
  double scale(int64_t rows, int64_t columns) const;

 private:
  MuonSettings settings_;
  ops::NewtonSchulz iteration_;
  std::shared_ptr<const UpdateRule> momentum_, apply_;
};

}  // namespace megalith::optim
