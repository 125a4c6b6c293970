#include "megalith/nn/footprint/footprint_scope.h"

namespace megalith::nn {

FootprintScope FootprintScope::child(std::string_view name) const {
  FootprintScope result = *this;
  if (updates_) result.prefix_.append(name).append(".");  // only updates look at names
  return result;
}

void FootprintScope::add(ParameterSize parameter) const {
  if (updates_) parameter.trained = false;
  to_->weights.push_back(parameter);
}

void FootprintScope::add_bias(std::vector<UpdatedPart> parts) const {
  ParameterSize bias;
  for (const UpdatedPart& part : parts) bias.numel += part.rows;
  if (updates_) bias.trained = updates_->trains_bias(full(std::move(parts)));
  to_->weights.push_back(bias);
}

std::vector<UpdatedPart> FootprintScope::full(std::vector<UpdatedPart> parts) const {
  for (UpdatedPart& part : parts) {
    part.name.insert(0, prefix_);
    if (part.name.ends_with('.')) part.name.pop_back();  // the scope itself
  }
  return parts;
}

// A comes before B, as peft adds them; a test compares the two lists.
UpdateSize FootprintScope::add_update(std::vector<UpdatedPart> parts, int64_t inputs, int64_t copies,
                                      bool expert) const {
  if (!updates_) return {};
  const UpdateSize update = updates_->of(full(std::move(parts)), inputs, copies);
  if (!update.any()) return update;
  to_->updates.push_back({.numel = update.a, .expert = expert, .adapter = true});
  to_->updates.push_back({.numel = update.b, .expert = expert, .adapter = true});
  return update;
}

}  // namespace megalith::nn
