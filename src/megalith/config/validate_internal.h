// Shared by the source files of validate(), one per subject.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "megalith/config/validate.h"

namespace megalith::config {

// Collects violations; a call of `require` reads like the rule.
class Problems {
 public:
  // Adds the message unless the rule holds. Arguments are evaluated in any case, so optionals in them use value_or().
  template <typename... Args>
  void require(bool holds, fmt::format_string<Args...> message, Args&&... args) {
    if (!holds) list_.push_back(fmt::format(message, std::forward<Args>(args)...));
  }
  void add(std::string problem) { list_.push_back(std::move(problem)); }
  // Returns whether all rules have held so far.
  bool empty() const { return list_.empty(); }
  // Returns the messages and leaves none.
  std::vector<std::string> take() { return std::move(list_); }

 private:
  std::vector<std::string> list_;
};

// Each adds the violations of its subject.
void check_parallel(const TrainingArguments& args, const ValidationContext& context, Problems& problems);
void check_batch(const TrainingArguments& args, const ValidationContext& context, Problems& problems);
void check_optimizer(const TrainingArguments& args, const ValidationContext& context, Problems& problems);
void check_model(const TrainingArguments& args, const ValidationContext& context, Problems& problems);
void check_data(const TrainingArguments& args, const ValidationContext& context, Problems& problems);
void check_run(const TrainingArguments& args, const ValidationContext& context, Problems& problems);

}  // namespace megalith::config
