// Converts words to typed values as HfArgumentParser does, and back to text. Conversion depends only on the type, not
// on the option: choices and ranges are checked later (value_problem). Doubles are printed with the fewest digits that
// read back as the same number, so args.yaml reproduces a run exactly.
#include "megalith/config/value.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/base/text.h"

namespace megalith::config {
namespace {

using nlohmann::json;

// As in HF: inside a dictionary given as text, quoted "true", "8" and "0.1" become bool, int and float; a quoted "1e-6"
// is not plain decimal and stays text.
json coerce_strings(const json& value) {
  if (value.is_object()) {
    json result = json::object();
    for (const auto& [key, item] : value.items()) result[key] = coerce_strings(item);
    return result;
  }
  if (!value.is_string()) return value;
  const std::string text = value.get<std::string>();
  const std::string lower = to_lower(text);
  if (lower == "true" || lower == "false") return lower == "true";
  const bool digits_only = !text.empty() && text.find_first_not_of("0123456789.") == std::string::npos;
  if (!digits_only) return value;
  if (const auto whole = parse_int(text)) return *whole;
  if (const auto number = parse_double(text)) return *number;
  return value;
}

// A text that starts with a brace is JSON, anything else the path of a JSON file.
std::optional<Value> parse_dict(const std::string& text, std::string& problem) {  // given on the command line
  std::string source = text;
  const bool inline_json = trim(text).starts_with('{');
  if (!inline_json) {
    std::ifstream file(text);
    source.assign(std::istreambuf_iterator<char>(file), {});
    if (!file.good() && source.empty()) {
      problem = fmt::format("a JSON object such as '{{\"key\": 1}}' or the path of a readable JSON file");
      return std::nullopt;
    }
  }
  const json parsed = json::parse(source, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) {
    problem = inline_json ? "valid JSON in braces, keys in double quotes" : "a file that holds one JSON object";
    return std::nullopt;
  }
  return JsonObject{(inline_json ? coerce_strings(parsed) : parsed).dump()};
}

// "a, b" "c" -> {"a", "b", "c"}; empty items vanish, so a trailing comma is harmless.
std::vector<std::string> split_commas(const std::vector<std::string>& words) {
  std::vector<std::string> items;
  for (const std::string& word : words)
    for (const std::string& part : split(word, ','))
      if (!trim(part).empty()) items.emplace_back(trim(part));
  return items;
}

// No option takes an infinity or NaN.
std::optional<double> parse_finite(const std::string& word) {
  const auto number = parse_double(word);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

// Returns all words converted, or std::nullopt if one of them does not convert.
template <typename T, typename Parse>
std::optional<Value> parse_each(const std::vector<std::string>& words, Parse parse) {
  std::vector<T> items;
  for (const std::string& word : words) {
    const auto item = parse(word);
    if (!item) return std::nullopt;
    items.push_back(*item);
  }
  return Value(items);
}

// Converts the single word of a scalar option; the default case is a dictionary.
std::optional<Value> convert_word(const std::string& word, ValueType type, std::string& problem) {
  const auto wrap = [](const auto& parsed) { return parsed ? std::optional<Value>(*parsed) : std::nullopt; };
  switch (type) {
    case ValueType::kBool:
      return wrap(parse_bool(word));
    case ValueType::kInt:
      return wrap(parse_int(word));
    case ValueType::kFloat:
      return wrap(parse_finite(word));
    case ValueType::kText:
      return Value(word);
    default:
      return parse_dict(word, problem);
  }
}

bool is_list(ValueType type) {
  return type == ValueType::kTextList || type == ValueType::kIntList || type == ValueType::kFloatList ||
         type == ValueType::kCommaList;
}

// Lists on the command line are several words; a comma list may also be one.
std::optional<Value> convert_list(const std::vector<std::string>& words, ValueType type) {
  if (type == ValueType::kTextList) return Value(words);
  if (type == ValueType::kCommaList) return Value(split_commas(words));
  if (type == ValueType::kIntList) return parse_each<int64_t>(words, [](const auto& word) { return parse_int(word); });
  return parse_each<double>(words, parse_finite);
}

// Enumerations and paths are text here, so JSON has a form for every alternative.
json to_json(const Value& value) {
  return std::visit(
      [](const auto& held) -> json {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, std::monostate>)
          return nullptr;
        else if constexpr (std::is_same_v<T, JsonObject>)
          return json::parse(held.text);
        else
          return held;
      },
      value);
}

}  // namespace

std::string type_name(ValueType type) {
  switch (type) {
    case ValueType::kBool:
      return "bool";
    case ValueType::kInt:
      return "int";
    case ValueType::kFloat:
      return "float";
    case ValueType::kText:
      return "text";
    case ValueType::kTextList:
      return "list";
    case ValueType::kIntList:
      return "int list";
    case ValueType::kFloatList:
      return "float list";
    case ValueType::kCommaList:
      return "comma list";
    case ValueType::kDict:
      return "JSON";
  }
  return "unknown";
}

// The hint completes "… is "abc"; expected".
std::string type_hint(ValueType type) {
  switch (type) {
    case ValueType::kBool:
      return "yes, true, t, y, 1 or no, false, f, n, 0";
    case ValueType::kInt:
      return "a whole number such as 8 (not 1e3 or 1.0)";
    case ValueType::kFloat:
      return "a finite number such as 0.1 or 5e-5";
    case ValueType::kText:
      return "one word";
    case ValueType::kTextList:
      return "one or more words";
    case ValueType::kIntList:
      return "one or more whole numbers";
    case ValueType::kFloatList:
      return "one or more numbers";
    case ValueType::kCommaList:
      return "words separated by commas";
    case ValueType::kDict:
      return "a JSON object or the path of a JSON file";
  }
  return "";
}

// The words that HfArgumentParser takes.
std::optional<bool> parse_bool(std::string_view text) {
  const std::string lower = to_lower(text);
  for (const char* word : {"yes", "true", "t", "y", "1"})
    if (lower == word) return true;
  for (const char* word : {"no", "false", "f", "n", "0"})
    if (lower == word) return false;
  return std::nullopt;
}

std::optional<Value> convert(const RawValue& raw, ValueType type, bool optional, std::string& problem) {
  // A guess at the message; parse_dict() has a more precise one.
  problem = type_hint(type);
  switch (raw.kind) {
    case RawValue::Kind::kNull:
      if (optional) return Value(std::monostate{});
      if (is_list(type)) return convert_list({}, type);  // an empty list is the way to say none
      if (type == ValueType::kDict) return JsonObject{};
      return std::nullopt;
    case RawValue::Kind::kBare:
      if (type == ValueType::kBool) return Value(true);
      return std::nullopt;
    case RawValue::Kind::kJson:
      if (type != ValueType::kDict) return std::nullopt;
      return JsonObject{raw.words.front()};  // already typed by the file
    case RawValue::Kind::kWords:
      break;
  }
  if (is_list(type)) return convert_list(raw.words, type);
  if (raw.words.size() != 1) return std::nullopt;
  return convert_word(raw.words.front(), type, problem);
}

std::string to_json_text(const Value& value) {
  // fmt writes the shortest text that reads back as the same double; JSON's own writer agrees but adds ".0".
  if (const auto* number = std::get_if<double>(&value)) return fmt::format("{}", *number);
  return to_json(value).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string to_display(const Value& value) {
  if (std::holds_alternative<std::monostate>(value)) return "none";
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* words = std::get_if<std::vector<std::string>>(&value))
    return fmt::format("{}", fmt::join(*words, ","));
  if (const auto* numbers = std::get_if<std::vector<int64_t>>(&value))
    return fmt::format("{}", fmt::join(*numbers, " "));
  if (const auto* numbers = std::get_if<std::vector<double>>(&value))
    return fmt::format("{}", fmt::join(*numbers, " "));
  return to_json_text(value);
}

}  // namespace megalith::config
