// MetricList: the numbers of one log line or one evaluation, in the order in which they are shown.
#pragma once

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megalith::train {

class MetricList {
 public:
  using Entry = std::pair<std::string, double>;

  MetricList() = default;
  MetricList(std::initializer_list<Entry> entries);

  // Appends, or replaces the value of a name that is there, at its place.
  void set(std::string_view name, double value);
  // The entries of another list, one after the other.
  void set_all(const MetricList& others);
  // Nothing when the name is not there.
  std::optional<double> find(std::string_view name) const;
  void erase(std::string_view name);

  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  bool operator==(const MetricList&) const = default;

  // One object: whole numbers below 2^53 without a fraction where the name counts something (`step`, `skipped_iter`,
  // …), all others as the shortest text that reads back to the same double; infinities and NaN, which JSON does not
  // have, as null.
  nlohmann::ordered_json to_json() const;
  // The numbers of an object; null reads as NaN, true as 1, and what is no number is left out.
  static MetricList from_json(const nlohmann::ordered_json& object);

 private:
  std::vector<Entry> entries_;
};

}  // namespace megalith::train
