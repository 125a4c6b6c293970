// A group is a combination of properties, and the list of groups is the product of all their values. So every rank,
// also one whose stage has no embedding or no experts, has the same groups under the same numbers.
#include "megalith/optim/param_groups.h"

#include "megalith/base/error.h"

namespace megalith::optim {

namespace {

// Megatron's rule: no decay for biases and for one-dimensional parameters, which are norm weights. Those of adapters
// are magnitudes, to which Hugging Face's trainer applies it.
bool decays(const nn::Parameter& p, const GroupOptions& options) {
  if (p.spec.name.ends_with(".bias")) return false;
  if (p.value.dim() > 1 || p.spec.role == nn::ParameterRole::kAdapter) return true;
  return options.decay_qk_norms &&
         (p.spec.name.find("q_norm") != std::string::npos || p.spec.name.find("k_norm") != std::string::npos);
}

// Returns the index of the first multiplier that matches the name; -1 if none does.
int multiplier(const nn::Parameter& p, const GroupOptions& options) {
  for (size_t i = 0; i < options.multipliers.size(); ++i)
    if (p.spec.name.find(options.multipliers[i].part) != std::string::npos) return static_cast<int>(i);
  return -1;
}

}  // namespace

std::string ParamGroup::name() const {
  return fmt::format("{}{}{}{}", decays ? "with decay" : "without decay", decoupled_lr ? ", decoupled lr" : "",
                     expert ? ", experts" : "", multiplier < 0 ? "" : fmt::format(", lr times {}", lr_mult));
}

// The order is fixed by these loops: multiplier, decoupled, expert, decay.
std::vector<ParamGroup> all_groups(const GroupOptions& options) {
  std::vector<ParamGroup> groups;
  for (int m = -1; m < static_cast<int>(options.multipliers.size()); ++m)
    for (const bool decoupled : {false, true}) {
      if (decoupled && !options.decoupled_lr) continue;
      for (const bool expert : {false, true})
        for (const bool decay : {true, false})
          groups.push_back({.decays = decay,
                            .decoupled_lr = decoupled,
                            .expert = expert,
                            .multiplier = m,
                            .lr_mult = m < 0 ? 1 : options.multipliers[static_cast<size_t>(m)].factor});
    }
  return groups;
}

size_t group_of(const nn::Parameter& parameter, const GroupOptions& options) {
  const std::vector<ParamGroup> groups = all_groups(options);
  for (size_t i = 0; i < groups.size(); ++i) {
    const ParamGroup& g = groups[i];
    if (g.decays == decays(parameter, options) && g.expert == parameter.spec.expert &&
        g.decoupled_lr == (options.decoupled_lr && parameter.spec.is_embedding_or_head) &&
        g.multiplier == multiplier(parameter, options))
      return i;
  }
  check(false, "{} belongs to no parameter group", parameter.spec.name);
  return 0;
}

}  // namespace megalith::optim
