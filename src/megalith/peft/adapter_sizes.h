// AdapterSizes: the sizes of the updates that Adapters (adapters.h) would attach to a model, for the planner.
#pragma once

#include <optional>
#include <vector>

#include "megalith/hf/name_map.h"
#include "megalith/nn/footprint/footprint_scope.h"
#include "megalith/peft/adapter_config.h"
#include "megalith/peft/targets.h"

namespace megalith::peft {

// Immutable; mirrors Adapters::attach.
class AdapterSizes : public nn::UpdateSizes {
 public:
  // `config` may still say "all" (before with_targets): then every weight passed to of() gets an update, unless it is a
  // convolution in the files. `names` is the name map of the family.
  AdapterSizes(AdapterConfig config, hf::NameMap names);

  // Elements of A and B for one weight on a rank: `parts` are its tensors with their local rows, `copies` its experts.
  nn::UpdateSize of(const std::vector<nn::UpdatedPart>& parts, int64_t inputs, int64_t copies) const override;
  bool trains_whole(const std::string& weight) const override;
  bool trains_bias(const std::vector<nn::UpdatedPart>& parts) const override;

 private:
  std::optional<Update> update_of_part(const nn::UpdatedPart& part) const;

  const AdapterConfig config_;
  const hf::NameMap names_;
  // "all" or "all-linear" is among the targets.
  const bool all_;
};

}  // namespace megalith::peft
