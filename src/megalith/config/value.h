// Option values: what a word on the command line or a scalar in a file becomes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace megalith::config {

// A dictionary option (lr_scheduler_kwargs, additional_configs): one JSON object, kept as compact text with sorted
// keys.
struct JsonObject {
  std::string text = "{}";
  bool empty() const { return text == "{}"; }
  bool operator==(const JsonObject&) const = default;
};

enum class ValueType { kBool, kInt, kFloat, kText, kTextList, kIntList, kFloatList, kCommaList, kDict };

// std::monostate is None. kTextList and kCommaList share one representation; they differ in how they are written.
using Value = std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<std::string>,
                           std::vector<int64_t>, std::vector<double>, JsonObject>;

// A value as it was given, before the option says what type it must have.
struct RawValue {
  enum class Kind {
    kBare,   // `--flag` with nothing behind it
    kNull,   // null in a file
    kWords,  // one word, or several for list options
    kJson,   // a mapping in a file; words[0] is its JSON text
  };
  Kind kind = Kind::kBare;
  std::vector<std::string> words;
};

// What a type is called in messages and in the documents: "int", "comma list", ….
std::string type_name(ValueType type);
// How it is read: "a whole number such as 8 (not 1e3 or 1.0)".
std::string type_hint(ValueType type);

// Converts by the rules of HfArgumentParser (docs/options.md). On failure returns nothing and sets `problem` to what
// was expected; the caller adds the option's name and origin.
std::optional<Value> convert(const RawValue& raw, ValueType type, bool optional, std::string& problem);

// yes/true/t/y/1 and no/false/f/n/0 in any case.
std::optional<bool> parse_bool(std::string_view text);

// JSON text, which is also YAML: null, true, 5e-05, "text", ["a","b"].
std::string to_json_text(const Value& value);
// For people: text without quotes, lists with commas, none for None.
std::string to_display(const Value& value);

}  // namespace megalith::config
