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

// An ordered map from names to numbers; names are unique. Not thread-safe; cheap to copy.
class MetricList {
 public:
  using Entry = std::pair<std::string, double>;

  MetricList() = default;
  // A name that occurs twice keeps its first place and its last value.
  MetricList(std::initializer_list<Entry> entries);

  // Appends the entry, or replaces the value of an existing name in place.
  void set(std::string_view name, double value);
  // Calls set() for each entry of another list, in order.
  void set_all(const MetricList& others);
  // Returns std::nullopt when the name is absent.
  std::optional<double> find(std::string_view name) const;
  // Removes the entry, if there is one.
  void erase(std::string_view name);

  // Iterates over pairs of name and value, in order.
  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  bool operator==(const MetricList&) const = default;

  // Returns one JSON object. Names that count something (`step`, `skipped_iter`, …) have integers if below 2^53; all
  // other numbers are written as the shortest text that reads back to the same double. Infinities and NaN, which JSON
  // lacks, become null.
  nlohmann::ordered_json to_json() const;
  // Reads the numbers of an object: null becomes NaN, true becomes 1, and entries that are not numbers are skipped.
  static MetricList from_json(const nlohmann::ordered_json& object);

 private:
  std::vector<Entry> entries_;
};

}  // namespace megalith::train
