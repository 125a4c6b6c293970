// Records that are left out, for people.
#pragma once

#include <fmt/format.h>

#include <string>

#include "megalith/base/log.h"

namespace megalith::data {

// Warns of the first few. One thread.
class ProblemLog {
 public:
  void add(const std::string& place, const std::string& problem) {
    if (shown_++ < kShown) log_warning("{}: record left out: {}", place, problem);
    if (first_.empty()) first_ = fmt::format("{}: {}", place, problem);
  }
  // For the end of a message: "; the first problem is …", or nothing.
  std::string in_words() const { return first_.empty() ? "" : "; the first problem is " + first_; }

 private:
  static constexpr int kShown = 5;
  int shown_ = 0;
  std::string first_;
};

}  // namespace megalith::data
