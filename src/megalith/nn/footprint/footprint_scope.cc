#include "megalith/nn/footprint/footprint_scope.h"

namespace megalith::nn {

FootprintScope FootprintScope::child(std::string_view name) const {
  FootprintScope result = *this;
  if (updates_) result.prefix_.append(name).append(".");  // only updates look at names
  return result;
}

// A comes before B, as peft adds them; a test compares the two lists.
UpdateSize FootprintScope::add_update(std::vector<UpdatedPart> parts, int64_t inputs, int64_t copies,
                                      bool expert) const {
  if (!updates_) return {};
  for (UpdatedPart& part : parts) part.name.insert(0, prefix_);
  const UpdateSize update = updates_->of(parts, inputs, copies);
  if (!update.any()) return update;
  to_->updates.push_back({.numel = update.a, .expert = expert, .adapter = true});
  to_->updates.push_back({.numel = update.b, .expert = expert, .adapter = true});
  return update;
}

}  // namespace megalith::nn
