// Settings of the optimizer, except for learning rate and weight decay, which the schedule sets.
// run::optimizer_settings makes them from the options.
#pragma once

#include <c10/core/ScalarType.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "megalith/optim/param_groups.h"
#include "megalith/optim/rules/adamw.h"
#include "megalith/optim/rules/muon.h"

namespace megalith::optim {

// The formats in which optimizer state is kept between steps (ops/update/stored_values.h); every update computes in
// fp32. A checkpoint holds fp32 numbers whatever the formats, so a run may continue with others.
struct StateFormats {
  // Main parameters of a model in bf16 or fp16: kFloat, or kHalf with scales. The parameters of an fp32 model are their
  // own main parameters, in any case in fp32.
  at::ScalarType main = at::kFloat;
  // Keeps only the lower 16 bits of fp32 main parameters where the model is in bf16: the upper ones are its parameters.
  // They are rounded to the nearest as before, but ties, one in 65536, go away from zero.
  bool remainders = false;
  // By state of the update rule: kFloat, kBFloat16, or with scales kHalf and kFloat8_e4m3fn. Others are fp32.
  std::map<std::string, at::ScalarType> states{};

  at::ScalarType of(const std::string& state) const;
  // The format of the main parameters of a model in `parameter`; kShort for remainders.
  at::ScalarType of_main(at::ScalarType parameter) const;
  // Return bytes per parameter: all states of `rule` or of these names, and the main parameters of a model in
  // `parameter`.
  double state_bytes(const UpdateRule& rule) const { return state_bytes(rule.state_names()); }
  double state_bytes(const std::vector<std::string>& names) const;
  double main_bytes(at::ScalarType parameter) const;
  // Returns one sentence for each problem, where `rule` has the states `names`.
  std::vector<std::string> problems(const std::string& rule, const std::vector<std::string>& names) const;
};

// Rule, clipping, offloading and groups.
struct OptimizerSettings {
  std::shared_ptr<const UpdateRule> rule = std::make_shared<AdamW>();
  // Updates the weight matrices, and `rule` everything else; nullptr if `rule` updates all. Needs
  // DdpSettings::matrices_apart.
  std::shared_ptr<const Muon> muon{};
  double clip_grad = 1.0;       // gradients with a larger global norm are scaled down to it; 0 disables clipping
  bool count_zeros = false;     // report StepResult::num_zeros
  double offload_fraction = 0;  // share of this rank's state that is kept and updated on the host
  GroupOptions groups{};
  StateFormats formats{};

  // The name of the optimizer in checkpoints and messages: of Muon, or else of the rule.
  std::string name() const { return muon ? Muon::name() : rule->name(); }
  // Names of the states of a parameter, which may be a matrix (nn::is_matrix).
  std::vector<std::string> state_names(bool matrix) const {
    return muon && matrix ? Muon::state_names() : rule->state_names();
  }

  // Throws a ConfigError that lists every problem, under the names of the options.
  void validate() const;
};

// When the distributed optimizer gathers the parameters that a step has updated.
enum class ParamGather {
  kInStep,     // before the step returns
  kInForward,  // starts after the update; the code that runs the model must call wait_for_params of the chunks
  // The same, but the gather of each chunk starts as soon as the chunk is updated, beside the update of the next. Not
  // with state on the host or parameters in fp8, which are ready only after the whole update.
  kDuringUpdate,
};

}  // namespace megalith::optim
