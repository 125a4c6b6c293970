// Option values: the typed form of a word on the command line or a scalar in a file.
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
  // Returns whether the object has no members.
  bool empty() const { return text == "{}"; }
  bool operator==(const JsonObject&) const = default;
};

// The types of options. kTextList and kCommaList hold words: "--x a b" and "--x a,b". kDict is a JSON object, or the
// path of a file with one.
enum class ValueType { kBool, kInt, kFloat, kText, kTextList, kIntList, kFloatList, kCommaList, kDict };

// std::monostate is None. kTextList and kCommaList share one representation; they differ in how they are written.
using Value = std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<std::string>,
                           std::vector<int64_t>, std::vector<double>, JsonObject>;

// A value as it was given, before the option says what type it must have.
struct RawValue {
  // The form in which a value was written.
  enum class Kind {
    kBare,   // `--flag` with nothing after it
    kNull,   // null in a file
    kWords,  // one word, or several for list options
    kJson,   // a mapping in a file; words[0] is its JSON text
  };
  Kind kind = Kind::kBare;
  std::vector<std::string> words;
};

// Returns the name of a type in messages and documents: "int", "comma list", ….
std::string type_name(ValueType type);
// Returns how it is written: "a whole number such as 8 (not 1e3 or 1.0)".
std::string type_hint(ValueType type);

// Converts by the rules of HfArgumentParser (docs/options.md). On failure returns std::nullopt and sets `problem` to
// what was expected; the caller adds the option's name and origin.
std::optional<Value> convert(const RawValue& raw, ValueType type, bool optional, std::string& problem);

// Accepts yes/true/t/y/1 and no/false/f/n/0 in any case.
std::optional<bool> parse_bool(std::string_view text);

// Returns JSON text, which is also YAML: null, true, 5e-05, "text", ["a","b"].
std::string to_json_text(const Value& value);
// Returns text for people: without quotes, lists with commas, "none" for None.
std::string to_display(const Value& value);

}  // namespace megalith::config
