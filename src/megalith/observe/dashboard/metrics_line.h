// A line of metrics.jsonl, read fast: nearly all of them are flat objects of numbers.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megalith::observe {

// The numbers of one object, by name. Used again for line after line, so that it allocates nothing.
class MetricsLine {
 public:
  using Entry = std::pair<std::string_view, double>;

  // False for anything but a JSON object. Its numbers become entries, true 1 and false 0, null and Python's NaN and
  // Infinity NaN; other values are left out. Names are valid UTF-8, and as long as the text of `line` lives or until
  // the next call.
  bool parse(std::string_view line);

  const std::vector<Entry>& entries() const { return entries_; }

 private:
  bool parse_flat(std::string_view line);
  bool parse_any(std::string_view line);

  std::vector<Entry> entries_;
  std::vector<std::string> names_;  // of lines that were not flat
};

}  // namespace megalith::observe
