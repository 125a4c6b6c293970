// Builds the table once per process: Megalith's own options in the order of the documents, with those of other programs
// inserted. The constructor checks what the compiler cannot: every spelling is unique, every option has a topic, and
// every one without effect has a reason.
#include "megalith/config/option_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/config/foreign_options_internal.h"
#include "megalith/config/option_list_internal.h"

namespace megalith::config {
namespace {

// This order is the order of topics in --help, docs/options.md and args.yaml.
std::vector<Option> all_options() {
  OptionList list;
  add_run_options(list);
  add_parallel_options(list);
  add_batch_options(list);
  add_model_options(list);
  add_moe_options(list);
  add_memory_options(list);
  add_precision_options(list);
  add_optimizer_options(list);
  add_schedule_options(list);
  add_data_options(list);
  add_indexed_data_options(list);
  add_media_options(list);
  add_adapter_options(list);
  add_logging_options(list);
  add_checkpoint_options(list);
  add_fault_options(list);
  return with_foreign_options(list.take(), foreign_options_txt);
}

// Only these get a --no_<name>, as in HfArgumentParser.
bool default_is_true(const Option& option) {
  const auto is_true = [](const Value& value) { return std::holds_alternative<bool>(value) && std::get<bool>(value); };
  return option.type == ValueType::kBool && !option.optional &&
         (is_true(option.train_default) || is_true(option.pretrain_default));
}

}  // namespace

// The members' initializers are the defaults of `train`; the table copies each of them from here.
const TrainingArguments& initial_arguments() {
  static const TrainingArguments arguments;
  return arguments;
}

std::string_view to_string(OptionStatus status) {
  switch (status) {
    case OptionStatus::kImplemented:
      return "implemented";
    case OptionStatus::kPlanned:
      return "planned";
    case OptionStatus::kNoEffect:
      return "accepted without effect";
    case OptionStatus::kRefused:
      return "refused";
  }
  return "unknown";
}

const OptionTable& OptionTable::instance() {
  static const OptionTable table(all_options());
  return table;
}

// Match points into options_, which never changes after this line.
OptionTable::OptionTable(std::vector<Option> options) : options_(std::move(options)) {
  for (const Option& option : options_) {
    check(!option.topic.empty() && (option.status == OptionStatus::kImplemented || !option.reason.empty()),
          "option {} has no topic or no reason", option.name);
    add_name(option.name, {&option, false});
    for (const std::string& alias : option.aliases) add_name(alias, {&option, false});
    for (const std::string& negation : option.negations) add_name(negation, {&option, true});
    if (default_is_true(option)) add_name("no_" + option.name, {&option, true});
  }
}

// A name that occurs twice is a bug of the table and not of its user.
void OptionTable::add_name(const std::string& name, Match match) {
  check(by_name_.emplace(name, match).second, "option name {} is used twice", name);
  names_.push_back(name);
}

std::optional<OptionTable::Match> OptionTable::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  if (found == by_name_.end()) return std::nullopt;
  return found->second;
}

std::vector<std::string> OptionTable::topics() const {
  std::vector<std::string> topics;
  for (const Option& option : options_)
    if (std::ranges::find(topics, option.topic) == topics.end()) topics.push_back(option.topic);
  return topics;
}

// The structs hold the defaults of `train`; writing every option makes them those of the dialect.
TrainingArguments default_arguments(Dialect dialect) {
  TrainingArguments args;
  args.dialect = dialect;
  for (const Option& option : OptionTable::instance().options())
    if (option.write) option.write(args, option.default_value(dialect));
  return args;
}

namespace {

// Returns the numbers in a value, which ranges apply to: none for text and booleans.
std::vector<double> numbers_of(const Value& value) {
  if (const auto* whole = std::get_if<int64_t>(&value)) return {static_cast<double>(*whole)};
  if (const auto* number = std::get_if<double>(&value)) return {*number};
  if (const auto* list = std::get_if<std::vector<int64_t>>(&value)) return {list->begin(), list->end()};
  if (const auto* list = std::get_if<std::vector<double>>(&value)) return *list;
  return {};
}

// Returns "1 or more", "0.5 or less" or "from 0 to 1".
std::string allowed_range(const Option& option) {
  // The bounds of a 32-bit number are a matter of storage; they are named only if one was exceeded.
  const bool from_below = option.minimum && *option.minimum > std::numeric_limits<int>::min();
  const bool from_above = option.maximum && *option.maximum < std::numeric_limits<int>::max();
  if (from_below && !from_above)
    return fmt::format("{} or more{}", *option.minimum, option.maximum ? ", below 2^31" : "");
  if (from_above && !from_below) return fmt::format("{} or less", *option.maximum);
  return fmt::format("from {} to {}", option.minimum.value_or(0), option.maximum.value_or(0));
}

}  // namespace

std::vector<std::string> words_of(const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return {*text};
  if (const auto* list = std::get_if<std::vector<std::string>>(&value)) return *list;
  if (const auto* flag = std::get_if<bool>(&value)) return {*flag ? "true" : "false"};
  if (const auto* number = std::get_if<int64_t>(&value)) return {std::to_string(*number)};
  return {};
}

std::string value_problem(const Option& option, const Value& value) {
  // List options are checked item by item. A boolean converts to true or false before it comes here.
  if (!option.choices.empty() && option.type != ValueType::kBool)
    for (const std::string& word : words_of(value))
      if (std::ranges::find(option.choices, word) == option.choices.end())
        return fmt::format("allowed: {}", list_in_words(option.choices, 64));
  for (double number : numbers_of(value))
    if (number < option.minimum.value_or(number) || number > option.maximum.value_or(number))
      return fmt::format("allowed: {}", allowed_range(option));
  return "";
}

}  // namespace megalith::config
