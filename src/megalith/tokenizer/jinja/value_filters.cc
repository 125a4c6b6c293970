// Filters that take one value of any kind: numbers, defaults, JSON.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "megalith/base/text.h"
#include "megalith/tokenizer/jinja/evaluator.h"
#include "megalith/tokenizer/jinja/string_literal.h"
#include "megalith/tokenizer/text/python_text.h"

namespace megalith::tokenizer::jinja {

namespace {

constexpr double kLargestWhole = 9.2e18;  // just below 2^63, so that the conversion is defined

// default(value, boolean): with `boolean`, values that are false are replaced, too.
Value default_filter(Evaluator& e, const Value& input, const Arguments& arguments) {
  const Bound bound(e.runtime(), "default", arguments, {"default_value", "boolean"});
  const bool missing = input.is_undefined() || (bound.flag(1, false) && !input.truth());
  return missing ? bound.value_or(0, Value::text("")) : input;
}

// Parses digits with an optional sign and surrounding whitespace, like int().
std::optional<int64_t> read_whole(std::string_view text, int64_t base) {
  text = strip(text, std::nullopt, Side::kBoth);
  if (base == 10) return parse_int(text.starts_with('+') ? text.substr(1) : text);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const std::string_view prefix = base == 16 ? "0x" : base == 8 ? "0o" : "0b";
  if ((base == 16 || base == 8 || base == 2) && text.starts_with(prefix)) text.remove_prefix(2);
  const auto value = base >= 2 && base <= 36 ? parse_based_int(text, static_cast<int>(base)) : std::nullopt;
  return value && negative ? std::optional(-*value) : value;
}

// Like jinja2's int: text that is not a whole number is tried as a float, and anything else gives the default.
Value int_filter(Evaluator& e, const Value& input, const Arguments& arguments) {
  const Bound bound(e.runtime(), "int", arguments, {"default", "base"});
  if (input.is_undefined()) e.runtime().fail(input.undefined_message());
  if (const auto whole = input.whole_number()) return Value::integer(*whole);
  std::optional<double> number = input.number();
  if (input.is_string()) {
    if (const auto whole = read_whole(input.as_text(), bound.integer_or(1, 10))) return Value::integer(*whole);
    number = parse_double(strip(input.as_text(), std::nullopt, Side::kBoth));
  }
  if (number && std::isfinite(*number) && std::fabs(*number) < kLargestWhole)
    return Value::integer(static_cast<int64_t>(*number));
  return bound.value_or(0, Value::integer(0));
}

// Like int: text is parsed, and what is not a number gives the default.
Value float_filter(Evaluator& e, const Value& input, const Arguments& arguments) {
  const Bound bound(e.runtime(), "float", arguments, {"default"});
  if (input.is_undefined()) e.runtime().fail(input.undefined_message());
  if (const auto number = input.number()) return Value::real(*number);
  if (input.is_string())
    if (const auto number = parse_double(strip(input.as_text(), std::nullopt, Side::kBoth)))
      return Value::real(*number);
  return bound.value_or(0, Value::real(0));
}

// Unary plus makes a number of a bool, as abs(True) does.
Value abs_filter(Evaluator& e, const Value& input, const Arguments&) {
  if (const auto number = input.number(); number && *number < 0) return negated(e, input, UnaryOperator::kMinus);
  return negated(e, input, UnaryOperator::kPlus);
}

// Rounds half to even at the given decimal, starting from the exact decimal value, like Python's round.
double rounded(double value, int64_t precision) {
  if (precision >= 0) return *parse_double(fmt::format("{:.{}f}", value, std::min<int64_t>(precision, 300)));
  const double unit = std::pow(10.0, static_cast<double>(std::min<int64_t>(-precision, 300)));
  return std::nearbyint(value / unit) * unit;
}

Value round_filter(Evaluator& e, const Value& input, const Arguments& arguments) {
  const Bound bound(e.runtime(), "round", arguments, {"precision", "method"});
  const int64_t precision = bound.integer_or(0, 0);
  const std::string method = bound.text_or(1, "common");
  if (input.is_undefined()) e.runtime().fail(input.undefined_message());
  const auto number = input.number();
  if (!number) e.runtime().fail(fmt::format("round(): '{}' is not a number", input.type_name()));
  if (method == "common") {
    // A whole number stays one.
    if (const auto whole = input.whole_number(); whole && precision >= 0) return Value::integer(*whole);
    return Value::real(rounded(*number, precision));
  }
  if (method != "ceil" && method != "floor")
    e.runtime().fail(fmt::format("round(): the method is '{}'; it must be common, ceil or floor", method));
  // jinja2's formula for ceil and floor, including its rounding errors.
  const double unit = std::pow(10.0, static_cast<double>(precision));
  return Value::real((method == "ceil" ? std::ceil(*number * unit) : std::floor(*number * unit)) / unit);
}

Value length_filter(Evaluator& e, const Value& input, const Arguments&) {
  return Value::integer(static_cast<int64_t>(length(e, input)));
}

// x|attr("items"): x.items without the fallback to a key.
Value attr_filter(Evaluator& e, const Value& input, const Arguments& arguments) {
  const Bound bound(e.runtime(), "attr", arguments, {"name"}, 1);
  // Attributes only: keys of a dictionary do not count.
  if (input.is(Value::Kind::kDict) && find_method(input, bound.text(0)) == nullptr)
    return Value::undefined(fmt::format("'dict object' has no attribute '{}'", bound.text(0)));
  return e.attribute(input, bound.text(0));
}

// With an indentation, Python drops the space after the comma.
Value json_filter(Evaluator& e, const Value& input, const Arguments& arguments) {
  const Bound bound(e.runtime(), "tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.flag(0, false);
  style.sort_keys = bound.flag(3, false);
  if (bound.given(1)) {
    style.indent = bound.at(1).is_string()
                       ? bound.text(1)
                       : std::string(static_cast<size_t>(std::clamp<int64_t>(bound.integer(1), 0, 100)), ' ');
    style.item_separator = ",";
  }
  if (bound.given(2)) {
    const std::vector<Value> separators = e.iterate(bound.at(2));
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string())
      e.runtime().fail("tojson(): separators must be two strings: (', ', ': ')");
    style.item_separator = separators[0].as_text();
    style.key_separator = separators[1].as_text();
  }
  return e.runtime().text(to_json(e, input, style));
}

constexpr NamedFilter kValueFilters[] = {{"default", default_filter}, {"d", default_filter},    {"int", int_filter},
                                         {"float", float_filter},     {"abs", abs_filter},      {"round", round_filter},
                                         {"length", length_filter},   {"count", length_filter}, {"attr", attr_filter},
                                         {"tojson", json_filter}};

}  // namespace

Filter find_value_filter(std::string_view name) {
  const auto found = std::ranges::find(kValueFilters, name, &NamedFilter::name);
  return found == std::end(kValueFilters) ? nullptr : found->call;
}

}  // namespace megalith::tokenizer::jinja
