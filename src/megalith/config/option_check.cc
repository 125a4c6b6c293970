#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "megalith/base/text.h"
#include "megalith/config/option_table.h"

namespace megalith::config {
namespace {

std::vector<double> numbers_of(const Value& value) {
  if (const auto* whole = std::get_if<int64_t>(&value)) return {static_cast<double>(*whole)};
  if (const auto* number = std::get_if<double>(&value)) return {*number};
  if (const auto* list = std::get_if<std::vector<int64_t>>(&value)) return {list->begin(), list->end()};
  if (const auto* list = std::get_if<std::vector<double>>(&value)) return *list;
  return {};
}

std::string allowed_range(const Option& option) {
  // The bounds of a 32-bit number are a matter of storage; they are named only when one was overstepped.
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
  return {};
}

std::string value_problem(const Option& option, const Value& value) {
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
