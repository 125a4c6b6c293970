#include "megalith/data/scored_rows.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/text.h"

namespace megalith::data {

namespace {

using config::ProblemType;
using io::Json;

// true and false count as 1 and 0, as in Python. Values of CSV files are text.
std::optional<double> number_of(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (value.is_string()) return parse_double(value.get<std::string>());
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

std::vector<double> label_numbers(const Json& value, const std::string& column, const std::string& place) {
  std::vector<double> numbers;
  const auto add = [&](const Json& each) {
    const auto number = number_of(each);
    check<DataError>(number.has_value(), "{}: column \"{}\" is {}; a label is a number, or a list of 0 and 1", place,
                     column, io::json_in_words(value));
    numbers.push_back(*number);
  };
  if (value.is_array())
    std::ranges::for_each(value, add);
  else
    add(value);
  return numbers;
}

int32_t bits_of(const std::vector<double>& numbers, const LabelForm& form, const std::string& place) {
  uint32_t bits = 0;
  const bool fits = std::ssize(numbers) == form.num_labels &&
                    std::ranges::all_of(numbers, [](double number) { return number == 0 || number == 1; });
  check<DataError>(fits,
                   "{}: the label is [{}]; multi_label_classification with num_labels {} needs a list of {} numbers"
                   " that are 0 or 1",
                   place, fmt::join(numbers, ", "), form.num_labels, form.num_labels);
  for (size_t i = 0; i < numbers.size(); ++i)
    if (numbers[i] == 1) bits |= uint32_t{1} << i;
  return static_cast<int32_t>(bits);
}

}  // namespace

int32_t label_of_number(float number) { return std::bit_cast<int32_t>(number); }

int32_t label_in(const Json& record, const std::string& column, const LabelForm& form, const std::string& place) {
  const auto value = record.find(column);
  check<DataError>(value != record.end() && !value->is_null(),
                   "{}: column \"{}\" is missing; stage cls needs a label for each record", place, column);
  const std::vector<double> numbers = label_numbers(*value, column, place);
  if (form.problem == ProblemType::kMultiLabel) return bits_of(numbers, form, place);
  check<DataError>(numbers.size() == 1, "{}: the label is a list of {} numbers; {} needs one number", place,
                   numbers.size(), choice_name(form.problem));
  const double label = numbers.front();
  if (form.problem == ProblemType::kRegression) {
    check<DataError>(std::isfinite(static_cast<float>(label)), "{}: the label {} is not a finite number", place, label);
    return label_of_number(static_cast<float>(label));
  }
  check<DataError>(label == std::floor(label) && label >= 0 && label < static_cast<double>(form.num_labels),
                   "{}: the label is {}, and num_labels is {}: labels are whole numbers from 0 to {}", place, label,
                   form.num_labels, form.num_labels - 1);
  return static_cast<int32_t>(label);
}

float margin_in(const Json& record, const std::string& column, const std::string& place) {
  const auto value = column.empty() ? record.end() : record.find(column);
  if (value == record.end() || value->is_null()) return 0;
  const auto number = number_of(*value);
  check<DataError>(number && std::isfinite(static_cast<float>(*number)),
                   "{}: column \"{}\" is {}; a margin is a number", place, column, io::json_in_words(*value));
  return static_cast<float>(*number);
}

void mark_scored(Sequence& row, int32_t label, std::optional<int32_t> pad, const std::string& place) {
  while (pad && !row.ids.empty() && row.ids.back() == *pad) row.ids.pop_back();
  check<DataError>(!row.ids.empty(), "{}: no token is left to score; give a text, or leave the record out", place);
  row.labels.assign(row.ids.size(), kIgnoredLabel);
  row.ids.push_back(row.ids.back());  // dropped by the collator, so any id will do
  row.labels.push_back(label);
}

}  // namespace megalith::data
