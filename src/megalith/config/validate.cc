// Runs the rules of all subjects and collects what they find. Rules are pure: they read arguments and a few facts
// about the run, touch no files, and may be called by a preview on a laptop.
#include "megalith/config/validate.h"

#include <fmt/ranges.h>

#include "megalith/base/error.h"
#include "megalith/config/option_table.h"
#include "megalith/config/validate_internal.h"

namespace megalith::config {

namespace {

// Arguments need not come from the parser, so each value must be checked against its option.
void check_values(const TrainingArguments& args, Problems& problems) {
  for (const Option& option : OptionTable::instance().options()) {
    if (!option.read) continue;
    const Value value = option.read(args);
    const std::string problem = value_problem(option, value);
    problems.require(problem.empty(), "{} is {}; {}", option.name, to_display(value), problem);
  }
}

}  // namespace

std::vector<std::string> problems(const TrainingArguments& args, const ValidationContext& context) {
  Problems found;
  check_values(args, found);
  if (!found.empty()) return found.take();  // the rules below divide by these numbers
  check_parallel(args, context, found);
  check_batch(args, context, found);
  check_model(args, context, found);
  check_optimizer(args, context, found);
  check_data(args, context, found);
  check_run(args, context, found);
  return found.take();
}

void validate(const TrainingArguments& args, const ValidationContext& context) {
  const std::vector<std::string> found = problems(args, context);
  if (!found.empty()) throw ConfigError(fmt::format("{}", fmt::join(found, "\n")));
}

}  // namespace megalith::config
