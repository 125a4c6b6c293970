// Reads options from YAML and JSON files, with the line of each for messages. Values stay as written wherever possible:
// the option's type decides later whether 1e3 is a number or a mistake. JSON has no line numbers in its parsed form, so
// the line of a key is searched in the text; it also keeps only the last of two equal keys, so they are counted while
// parsing.
#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "megalith/base/json_words.h"
#include "megalith/base/text.h"
#include "megalith/config/assignment_internal.h"

namespace megalith::config {
namespace {

using nlohmann::json;

// One option of a file.
struct FileEntry {
  std::string key;
  RawValue raw;
  int line = 0;  // 1-based
};

// An alias repeats a whole tree, so a few lines can stand for billions of values. Real files have hundreds.
constexpr int64_t kMostValues = 100'000;

// Throws YAML::Exception if the tree has more than kMostValues values, those of aliases counted as often as they occur.
void check_size(const YAML::Node& node, int64_t& left) {
  if (--left < 0)
    throw YAML::Exception(node.Mark(), fmt::format("the file stands for more than {} values; write them without"
                                                   " aliases (*name)",
                                                   kMostValues));
  for (const auto& item : node) {
    if (node.IsMap()) check_size(item.second, left);
    if (node.IsSequence()) check_size(item, left);
  }
}

// Gives a plain scalar the type that it looks like; a quoted one (tag "!" in yaml-cpp) is text. Needed for mappings
// and nested lists only; values of options go through raw_from_yaml().
json yaml_to_json(const YAML::Node& node) {
  if (node.IsMap()) {
    json object = json::object();
    for (const auto& item : node) object[item.first.as<std::string>()] = yaml_to_json(item.second);
    return object;
  }
  if (node.IsSequence()) {
    json array = json::array();
    for (const auto& item : node) array.push_back(yaml_to_json(item));
    return array;
  }
  if (node.IsNull()) return nullptr;
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return text;
  if (text == "true" || text == "false") return text == "true";
  if (const auto whole = parse_int(text)) return *whole;
  if (const auto number = parse_double(text)) return *number;
  return text;
}

// Returns a value as the word that the command line would have: strings without their quotes.
std::string json_word(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

// Lists become words, objects stay JSON text, and everything else is one word.
RawValue raw_from_json(const json& value) {
  if (value.is_null()) return {RawValue::Kind::kNull, {}};
  if (value.is_object()) return {RawValue::Kind::kJson, {value.dump()}};
  if (!value.is_array()) return {RawValue::Kind::kWords, {json_word(value)}};
  RawValue raw{RawValue::Kind::kWords, {}};
  for (const json& item : value) raw.words.push_back(json_word(item));
  return raw;
}

// Scalars keep their text, so that 1e3 and 1.0 are not mistaken for whole numbers.
RawValue raw_from_yaml(const YAML::Node& node) {
  if (node.IsScalar()) return {RawValue::Kind::kWords, {node.Scalar()}};
  if (!node.IsSequence()) return raw_from_json(yaml_to_json(node));
  RawValue raw{RawValue::Kind::kWords, {}};
  for (const auto& item : node) raw.words.push_back(item.IsScalar() ? item.Scalar() : yaml_to_json(item).dump());
  return raw;
}

// Returns the entries of a YAML file in the order of the file; on a syntax error, those before it are lost as well.
std::vector<FileEntry> read_yaml(const std::string& path, const std::string& text, std::vector<std::string>& problems) {
  std::vector<FileEntry> entries;
  try {
    const YAML::Node root = YAML::Load(text);
    if (root.IsNull()) return entries;
    if (!root.IsMap()) {
      problems.push_back(fmt::format("{}: expected one option per line, \"name: value\"", path));
      return entries;
    }
    int64_t left = kMostValues;
    check_size(root, left);
    for (const auto& item : root) {
      const int line = item.first.Mark().line + 1;
      if (item.first.IsScalar())
        entries.push_back({item.first.Scalar(), raw_from_yaml(item.second), line});
      else
        problems.push_back(fmt::format("{}:{}: an option name must be one word", path, line));
    }
  } catch (const YAML::Exception& error) {
    problems.push_back(fmt::format("{}:{}: not valid YAML: {}", path, error.mark.line + 1, error.msg));
  }
  return entries;
}

// Returns the line of the first occurrence of the key; 1 if it is written with escapes.
int line_of_key(const std::string& text, const std::string& key) {
  const size_t at = text.find(json(key).dump());
  if (at == std::string::npos) return 1;
  return 1 + static_cast<int>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
}

// Returns the entries of a JSON file, sorted by key, as the parser keeps objects.
std::vector<FileEntry> read_json(const std::string& path, const std::string& text, std::vector<std::string>& problems) {
  std::vector<FileEntry> entries;
  std::map<std::string, int> seen;
  // The parser calls this for every key; depth 1 is that of the options themselves.
  const auto count_keys = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth == 1 && event == json::parse_event_t::key) ++seen[parsed.get<std::string>()];
    return true;
  };
  json root;
  try {
    root = json::parse(text, count_keys);
  } catch (const json::parse_error& error) {
    const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(error.byte, text.size()));
    problems.push_back(fmt::format("{}:{}: not valid JSON: {}", path, 1 + std::count(text.begin(), end, '\n'),
                                   without_exception_name(error.what())));
    return entries;
  }
  if (!root.is_object()) {
    problems.push_back(fmt::format("{}: expected one JSON object", path));
    return entries;
  }
  for (const auto& [key, value] : root.items()) {
    const int line = line_of_key(text, key);
    // The parser keeps the last of several equal keys; report_duplicates finds the others by these entries.
    for (int i = 0; i < seen[key]; ++i) entries.push_back({key, raw_from_json(value), line});
  }
  return entries;
}

// A second value for a key is a mistake in a file, where order carries no meaning.
void report_duplicates(const std::string& path, const std::vector<FileEntry>& entries,
                       std::vector<std::string>& problems) {
  std::map<std::string, int> first_line;
  for (const FileEntry& entry : entries) {
    const auto [found, fresh] = first_line.emplace(entry.key, entry.line);
    if (!fresh)
      problems.push_back(fmt::format("{}:{}: {} is given twice, first in line {}; keep one", path, entry.line,
                                     entry.key, found->second));
  }
}

}  // namespace

bool is_option_file(const std::string& word) {
  if (word.starts_with('-') || word.find('=') != std::string::npos) return false;
  return word.ends_with(".yaml") || word.ends_with(".yml") || word.ends_with(".json");
}

// Names such as no_x are for the command line only.
std::vector<Assignment> read_option_file(const std::string& path, std::vector<std::string>& problems) {
  std::ifstream file(path);
  if (!file.good()) {
    problems.push_back(fmt::format("{}: the file cannot be read", path));
    return {};
  }
  std::ostringstream text;
  text << file.rdbuf();
  const auto entries =
      path.ends_with(".json") ? read_json(path, text.str(), problems) : read_yaml(path, text.str(), problems);
  report_duplicates(path, entries, problems);

  std::vector<Assignment> assignments;
  for (const FileEntry& entry : entries) {
    const std::string origin = fmt::format("{}:{}", path, entry.line);
    const auto match = OptionTable::instance().find(entry.key);
    if (!match) {
      problems.push_back(fmt::format("{}: {}", origin, unknown_option(entry.key, entry.key, {})));
    } else if (match->negated) {
      problems.push_back(fmt::format("{}: {}: write {}: false", origin, entry.key, match->option->name));
    } else {
      assignments.push_back({match->option, false, entry.raw, entry.key, entry.key, origin});
    }
  }
  return assignments;
}

// A negated name counts as unknown here: {"no_x": true} is not a way to write x = false.
std::vector<Assignment> read_object(const JsonObject& object, std::vector<std::string>& unknown) {
  std::vector<Assignment> assignments;
  const json members = json::parse(object.text);
  for (const auto& [key, value] : members.items()) {
    const auto match = OptionTable::instance().find(key);
    if (match && !match->negated)
      assignments.push_back({match->option, false, raw_from_json(value), key, key, "additional_configs"});
    else
      unknown.push_back(key);
  }
  return assignments;
}

// "null" -> none, "[1, 2]" -> {"1", "2"}, "a,b" -> {"a,b"}: commas are split later, if the option takes a comma list.
RawValue raw_from_override(const std::string& text) {
  if (text == "null") return {RawValue::Kind::kNull, {}};
  if (text.starts_with('[') && text.ends_with(']')) {
    try {
      const YAML::Node node = YAML::Load(text);
      if (node.IsSequence()) return raw_from_yaml(node);
    } catch (const YAML::Exception&) {
      // Not a list after all: the text itself is the value.
    }
  }
  return {RawValue::Kind::kWords, {text}};
}

}  // namespace megalith::config
