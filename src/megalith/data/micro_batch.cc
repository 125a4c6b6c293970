#include "megalith/data/micro_batch.h"

#include <vector>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/host_values.h"

namespace megalith::data {

namespace {

// Throws with the names that exist: the usual mistake is a misspelled field, or a collator that forgets it.
const ExtraTensor& find_extra(const MicroBatch& batch, std::string_view name) {
  const auto found = batch.extras.find(name);
  if (found != batch.extras.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [each, tensor] : batch.extras) names.push_back("\"" + each + "\"");
  throw DataError(fmt::format(
      "a micro-batch has no extra tensor \"{}\"; it has {}. Give the samples a field of that name, or add the tensor in"
      " a collator of your own",
      name, names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
}

}  // namespace

double MicroBatch::efficiency() const {
  return tokens() == 0 ? 0.0 : static_cast<double>(real_tokens) / static_cast<double>(tokens());
}

at::Tensor MicroBatch::extra(std::string_view name, at::Device device) const {
  return ops::to_device(find_extra(*this, name).values, device);
}

void MicroBatch::require_extras(std::span<const std::string> names) const {
  for (const std::string& name : names) find_extra(*this, name);
}

}  // namespace megalith::data
