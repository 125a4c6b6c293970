// MetricsLine: a fast parser for lines of metrics.jsonl, nearly all of which are flat objects of numbers.
//
//   {"step":10,"loss":2.5,"note":"x","grad_norm":null}  ->  step 10, loss 2.5, grad_norm NaN
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megalith::observe {

// The numbers of one object, by name. Reused for line after line, so that it does not allocate. Not thread-safe.
class MetricsLine {
 public:
  using Entry = std::pair<std::string_view, double>;

  // Returns false for anything but a JSON object. Its numbers become entries; true is 1 and false 0; null and Python's
  // NaN and Infinity are NaN; other values are skipped. Names are valid UTF-8, and valid until the next call or until
  // the text of `line` is gone. The whole line must be one value; anything after it makes it malformed.
  bool parse(std::string_view line);

  // Returns the numbers of the line parsed last, in its order; a name may occur twice if the line has it twice.
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  // The fast parser and the general one; both fill entries_ and return false when the line is not theirs to read.
  bool parse_flat(std::string_view line);
  bool parse_any(std::string_view line);

  std::vector<Entry> entries_;
  std::vector<std::string> names_;  // names of the last line, if it was not flat
};

}  // namespace megalith::observe
