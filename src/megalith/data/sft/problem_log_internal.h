// ProblemLog: reports skipped records to the user.
#pragma once

#include <fmt/format.h>

#include <string>

#include "megalith/base/log.h"

namespace megalith::data {

// Logs a warning for the first few. Not thread-safe. A dataset with a systematic mistake would otherwise print one
// warning per record.
class ProblemLog {
 public:
  // `place` is "file:line". Beyond the first kShown, problems are only counted.
  void add(const std::string& place, const std::string& problem) {
    if (shown_++ < kShown) log_warning("{}: record left out: {}", place, problem);
    if (first_.empty()) first_ = fmt::format("{}: {}", place, problem);
  }
  // Returns "; the first problem is …" for the end of a message; empty if there was none.
  std::string in_words() const { return first_.empty() ? "" : "; the first problem is " + first_; }

 private:
  static constexpr int kShown = 5;
  int shown_ = 0;
  std::string first_;
};

}  // namespace megalith::data
