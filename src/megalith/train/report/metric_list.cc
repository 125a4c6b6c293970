// A list and not a map: lines have some twenty entries, which are shown in the order in which they were set, and a
// linear search over them is as fast as a lookup.
#include "megalith/train/report/metric_list.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace megalith::train {
namespace {

using Json = nlohmann::ordered_json;

// Names whose values count something; all others are quantities, which keep their fraction ("3.0").
constexpr auto kCounts =
    std::to_array<std::string_view>({"step", "skipped_iter", "nan_iter", "num_zeros_in_grad", "num_input_tokens_seen",
                                     "consumed_samples", "memory", "samples", "tokens"});

bool counts(std::string_view name, double value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53: integers are exact below
  return std::ranges::find(kCounts, name) != kCounts.end() && std::trunc(value) == value && std::abs(value) < kExact;
}

}  // namespace

MetricList::MetricList(std::initializer_list<Entry> entries) {
  for (const auto& [name, value] : entries) set(name, value);
}

void MetricList::set(std::string_view name, double value) {
  const auto entry = std::ranges::find(entries_, name, &Entry::first);
  if (entry != entries_.end())
    entry->second = value;
  else
    entries_.emplace_back(name, value);
}

void MetricList::set_all(const MetricList& others) {
  for (const auto& [name, value] : others) set(name, value);
}

std::optional<double> MetricList::find(std::string_view name) const {
  const auto entry = std::ranges::find(entries_, name, &Entry::first);
  if (entry == entries_.end()) return std::nullopt;
  return entry->second;
}

void MetricList::erase(std::string_view name) {
  std::erase_if(entries_, [&](const Entry& candidate) { return candidate.first == name; });
}

Json MetricList::to_json() const {
  Json object = Json::object();
  for (const auto& [name, value] : entries_) {
    if (!std::isfinite(value))
      object[name] = nullptr;
    else if (counts(name, value))
      object[name] = static_cast<int64_t>(value);
    else
      object[name] = value;
  }
  return object;
}

MetricList MetricList::from_json(const Json& object) {
  MetricList list;
  for (const auto& [name, value] : object.items()) {
    if (value.is_number()) list.set(name, value.get<double>());
    if (value.is_boolean()) list.set(name, value.get<bool>() ? 1 : 0);
    if (value.is_null()) list.set(name, std::numeric_limits<double>::quiet_NaN());
  }
  return list;
}

}  // namespace megalith::train
