// AdapterSizes: the sizes of the updates that Adapters (adapters.h) would attach to a model, for the planner.
#pragma once

#include "megalith/hf/name_map.h"
#include "megalith/nn/footprint/footprint_scope.h"
#include "megalith/peft/adapter_config.h"

namespace megalith::peft {

class AdapterSizes : public nn::UpdateSizes {
 public:
  // `config` may still say "all" (before with_targets): then every weight passed to of() gets an update. `names` is
  // the name map of the family.
  AdapterSizes(AdapterConfig config, hf::NameMap names);

  nn::UpdateSize of(const std::vector<nn::UpdatedPart>& parts, int64_t inputs, int64_t copies) const override;

 private:
  const AdapterConfig config_;
  const hf::NameMap names_;
  const bool all_;
};

}  // namespace megalith::peft
