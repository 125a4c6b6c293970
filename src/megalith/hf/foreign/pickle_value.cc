#include "megalith/hf/foreign/pickle_value.h"

#include <algorithm>
#include <ranges>

namespace megalith::hf {

bool PickleValue::is_dict() const {
  return kind == Kind::kDict || is_made_by("collections.OrderedDict") || is_made_by("collections.defaultdict");
}

// A key that occurs twice has the value that came last, as in Python.
const PickleValue* PickleValue::find(std::string_view key) const {
  for (const auto& [name, value] : std::views::reverse(pairs))
    if (name->kind == Kind::kText && name->text == key) return value;
  const bool has_attributes = kind == Kind::kObject && state && state->kind == Kind::kDict;
  return has_attributes ? state->find(key) : nullptr;
}

const PickleValue* PickleValue::at(size_t index) const {
  const PickleValue* of = kind == Kind::kObject ? args : this;
  return of && index < of->items.size() ? of->items[index] : nullptr;
}

}  // namespace megalith::hf
