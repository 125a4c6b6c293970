// Fields of all rows are first compared (names, type, shape, fill), then copied strip by strip into one tensor that was
// filled with padding. Values of labels start where the strip's labels start, so they stay beside them after the shift.
#include "megalith/data/collate_fields_internal.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <ranges>
#include <vector>

#include "megalith/base/error.h"

namespace megalith::data {

namespace {

// Returns how many numbers one value has.
int64_t numbers_of_value(const Field& field) {
  int64_t numbers = 1;
  for (const int64_t size : field.shape) numbers *= size;
  return numbers;
}

// Returns how many numbers the field has in all.
int64_t count_of(const Field& field) {
  return std::visit([](const auto& numbers) { return std::ssize(numbers); }, field.numbers);
}

// "float [2] per label, fill 0": everything that must agree between rows, for a message.
std::string field_in_words(const Field& field) {
  const char* const of[] = {"label", "token", "row"};
  return fmt::format("{} [{}] per {}, fill {}", field.numbers.index() == 0 ? "float" : "int64",
                     fmt::join(field.shape, ", "), of[static_cast<int>(field.of)], field.fill);
}

std::string field_names(const Sequence& row) {
  std::vector<std::string> names;
  for (const auto& [name, field] : row.fields) names.push_back(name);
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

// Whether everything but the numbers is the same.
bool alike(const Field& a, const Field& b) {
  return a.numbers.index() == b.numbers.index() && a.of == b.of && a.shape == b.shape && a.fill == b.fill;
}

// Checks that a field has a value for each token, or one for the row.
void check_field(const std::string& name, const Field& field, const Sequence& row, size_t number) {
  const int64_t values = field.of == FieldOf::kRow ? 1 : std::ssize(row.ids);
  const int64_t each = numbers_of_value(field);
  check<DataError>(count_of(field) == values * each,
                   "field \"{}\" of row {} of a micro-batch has {} numbers; it must have {}: {} {} of shape [{}]", name,
                   number, count_of(field), values * each, values,
                   field.of == FieldOf::kRow ? "value for the row" : "values, one for each token,",
                   fmt::join(field.shape, ", "));
}

// Compares all rows with the first one, which stands for the batch in collate_field.
void check_rows(std::span<const Sequence* const> rows) {
  const Sequence& first = *rows.front();
  for (size_t i = 0; i < rows.size(); ++i) {
    const Sequence& row = *rows[i];
    check<DataError>(std::ranges::equal(std::views::keys(row.fields), std::views::keys(first.fields)),
                     "rows of one micro-batch have different fields: row 0 has {}, row {} has {}; give all rows the"
                     " same",
                     field_names(first), i, field_names(row));
    for (const auto& [name, field] : row.fields) {
      const Field& expected = first.fields.at(name);
      check<DataError>(alike(field, expected),
                       "field \"{}\" is {} in row 0 of a micro-batch and {} in row {}; it must be the same in all",
                       name, field_in_words(expected), field_in_words(field), i);
      check_field(name, field, row, i);
    }
  }
}

// Returns the sizes {first, rest…} of a tensor: one value of shape `rest` for each token or row.
std::vector<int64_t> with_rest(int64_t first, const std::vector<int64_t>& rest) {
  std::vector<int64_t> sizes{first};
  sizes.insert(sizes.end(), rest.begin(), rest.end());
  return sizes;
}

// Writes one value per row, in the order of the micro-batch. [rows, …]
template <typename T>
void write_rows(std::span<const Sequence* const> rows, const std::string& name, T* out) {
  for (const Sequence* row : rows)
    out = std::ranges::copy(std::get<std::vector<T>>(row->fields.at(name).numbers), out).out;
}

// Writes the values of tokens or labels; padding between strips keeps the fill value.
template <typename T>
void write_strips(std::span<const Strip> strips, const std::string& name, T* out) {
  for (const Strip& strip : strips) {
    const Field& field = strip.row->fields.at(name);
    const int64_t each = numbers_of_value(field);
    const int64_t begin = field.of == FieldOf::kLabel ? strip.label_begin() : strip.begin;
    if (strip.tokens > 0)  // otherwise `begin` may lie beyond the end of the row
      std::copy_n(std::get<std::vector<T>>(field.numbers).begin() + begin * each, strip.tokens * each, out);
    out += strip.length * each;
  }
}

// T is the type of the numbers: float becomes fp32, int64_t stays.
template <typename T>
ExtraTensor collate_field(const std::string& name, std::span<const Sequence* const> rows, std::span<const Strip> strips,
                          int64_t total) {
  constexpr at::ScalarType kType = std::is_same_v<T, float> ? at::kFloat : at::kLong;
  const Field& field = rows.front()->fields.at(name);
  if (field.of == FieldOf::kRow) {
    at::Tensor values = at::empty(with_rest(std::ssize(rows), field.shape), kType);
    write_rows(rows, name, values.mutable_data_ptr<T>());
    return {values, ExtraOf::kRows};
  }
  at::Tensor values = at::full(with_rest(total, field.shape), field.fill, kType);
  write_strips(strips, name, values.mutable_data_ptr<T>());
  return {values, ExtraOf::kTokens};
}

}  // namespace

std::map<std::string, ExtraTensor, std::less<>> collate_fields(std::span<const Sequence* const> rows,
                                                               std::span<const Strip> strips, int64_t total) {
  std::map<std::string, ExtraTensor, std::less<>> extras;
  if (std::ranges::all_of(rows, [](const Sequence* row) { return row->fields.empty(); })) return extras;
  check_rows(rows);
  for (const auto& [name, field] : rows.front()->fields)
    extras[name] = field.numbers.index() == 0 ? collate_field<float>(name, rows, strips, total)
                                              : collate_field<int64_t>(name, rows, strips, total);
  return extras;
}

}  // namespace megalith::data
