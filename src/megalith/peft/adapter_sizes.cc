// The sizes of A and B that Adapters::attach would create, by the same rules and without a model: r rows of A per
// targeted module, r columns of B per targeted output row, with the largest r of the weight; with use_dora, a magnitude
// per such row.
#include "megalith/peft/adapter_sizes.h"

#include <algorithm>

#include "megalith/nn/parameter/dora.h"
#include "megalith/peft/names.h"

namespace megalith::peft {

AdapterSizes::AdapterSizes(AdapterConfig config, hf::NameMap names)
    : config_(std::move(config)),
      names_(std::move(names)),
      all_(std::ranges::any_of(config_.target_modules,
                               [](const std::string& name) { return name == "all" || name == "all-linear"; })) {}

nn::UpdateSize AdapterSizes::of(const std::vector<nn::UpdatedPart>& parts, int64_t inputs, int64_t copies) const {
  nn::UpdateSize size;
  int64_t rank = 0, modules = 0, rows = 0, outputs = 0, largest = 0;
  std::string last;
  for (const nn::UpdatedPart& part : parts) {
    outputs += part.rows;
    const auto update = update_of_part(part);
    if (!update) continue;
    modules += update->module != last ? 1 : 0;  // tensors of one module share an A
    last = update->module;
    rank = std::max(rank, update->rank);
    rows += part.rows;
    largest = std::max(largest, part.rows);
  }
  size.hidden = modules * rank;
  size.b = copies * rows * rank;
  size.a = copies * size.hidden * inputs;
  if (!config_.use_dora || !size.any()) return size;
  size.magnitudes = rows;
  size.outputs = outputs;
  size.largest_part = largest;
  size.norm_block = std::min(largest, nn::norm_rows_at_once(inputs)) * inputs;
  return size;
}

std::optional<Update> AdapterSizes::update_of_part(const nn::UpdatedPart& part) const {
  const std::string name = part.name + ".weight";
  if (name.starts_with("mtp.") && !config_.on_mtp) return std::nullopt;
  if (!all_) return update_of(names_, name, config_);
  const auto theirs = hf::their_name(names_, name);
  if (theirs && is_kernel(names_, *theirs)) return std::nullopt;
  return Update{module_of(names_, name), config_.rank};
}

bool AdapterSizes::trains_whole(const std::string& weight) const {
  return is_saved(module_of(names_, weight), config_);
}

bool AdapterSizes::trains_bias(const std::vector<nn::UpdatedPart>& parts) const {
  // "all" means the linear layers, which norms and convolutions are not.
  if (all_ && config_.biases == TrainedBiases::kTargets)
    return !parts[0].name.ends_with("norm") && update_of_part(parts[0]).has_value();
  return std::ranges::any_of(
      parts, [&](const nn::UpdatedPart& part) { return peft::trains_whole(names_, part.name + ".bias", config_); });
}

}  // namespace megalith::peft
