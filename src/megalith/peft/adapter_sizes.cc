// The sizes of A and B that Adapters::attach would create, by the same rules and without a model: r rows of A per
// targeted module, r columns of B per targeted output row.
#include "megalith/peft/adapter_sizes.h"

#include <algorithm>

#include "megalith/peft/names.h"

namespace megalith::peft {

AdapterSizes::AdapterSizes(AdapterConfig config, hf::NameMap names)
    : config_(std::move(config)),
      names_(std::move(names)),
      all_(std::ranges::any_of(config_.target_modules,
                               [](const std::string& name) { return name == "all" || name == "all-linear"; })) {}

nn::UpdateSize AdapterSizes::of(const std::vector<nn::UpdatedPart>& parts, int64_t inputs, int64_t copies) const {
  nn::UpdateSize size;
  std::string last;
  for (const nn::UpdatedPart& part : parts) {
    const std::string module = module_of(names_, part.name + ".weight");
    if (!all_ && !is_target(module, config_)) continue;
    if (module != last) size.hidden += config_.rank;  // tensors of one module share an A
    last = module;
    size.b += copies * part.rows * config_.rank;
  }
  size.a = copies * size.hidden * inputs;
  return size;
}

}  // namespace megalith::peft
