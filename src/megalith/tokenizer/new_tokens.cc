// New tokens are inserted into the text of the files instead of writing these again from a parsed document: a large
// vocabulary keeps its order, and everything that Megalith does not know about stays as it is, byte by byte.
//
//   tokenizer.json          "added_tokens": [{"id", "content", flags}, …]
//   tokenizer_config.json   "added_tokens_decoder": {"<id>": {"content", flags}, …}; older versions of transformers
//                           read this first, and tokenizers without a tokenizer.json have nothing else
#include "megalith/tokenizer/new_tokens.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/tokenizer/tokenizer_parts_internal.h"

namespace megalith::tokenizer {

namespace {

using nlohmann::ordered_json;

// The brackets around the value of a member, as offsets in the text.
struct Brackets {
  size_t open, close;
};

// Returns the offset of the quote that ends the string which begins at `quote`.
size_t end_of_string(std::string_view json, size_t quote) {
  size_t at = quote + 1;
  while (at < json.size() && json[at] != '"') at += json[at] == '\\' ? 2 : 1;
  return at;
}

// Finds the array or object that is the value of a member of the outermost object. `json` is valid JSON.
std::optional<Brackets> find_member(std::string_view json, std::string_view name) {
  int depth = 0;
  bool inside = false;  // the scan is within the member's value
  size_t open = 0;
  for (size_t at = 0; at < json.size(); ++at) {
    const char c = json[at];
    if (c == '"') {
      const size_t end = end_of_string(json, at);
      const size_t next = json.find_first_not_of(" \t\r\n", end + 1);
      if (depth == 1 && json.substr(at + 1, end - at - 1) == name && next < json.size() && json[next] == ':')
        inside = true;
      at = end;
    } else if (c == '{' || c == '[') {
      if (++depth == 2) open = at;
    } else if (c == '}' || c == ']') {
      if (--depth == 1 && inside) return Brackets{open, at};
    } else if (c == ',' && depth == 1) {
      inside = false;  // the value was null
    }
  }
  return std::nullopt;
}

// Inserts `entry` before a closing bracket, after a comma unless it is the first.
void insert_before(std::string& json, size_t close, const std::string& entry, const char* indent, const char* outdent) {
  const size_t last = json.find_last_not_of(" \t\r\n", close - 1);
  const bool first = json[last] == '[' || json[last] == '{';
  json.replace(last + 1, close - last - 1, fmt::format("{}\n{}{}\n{}", first ? "" : ",", indent, entry, outdent));
}

// Appends `entries` to a list of the outermost object; `brackets` is "[]" or "{}", for a list that does not exist yet.
void append_to_member(std::string& json, const char* name, const char* brackets,
                      const std::vector<std::string>& entries) {
  if (!find_member(json, name))
    insert_before(json, json.find_last_of('}'), fmt::format("\"{}\": {}", name, brackets), "  ", "");
  insert_before(json, find_member(json, name)->close, fmt::format("{}", fmt::join(entries, ",\n    ")), "    ", "  ");
}

// The members of an added token that both files have.
ordered_json flags_of(const AddedToken& token) {
  return {{"content", token.content}, {"single_word", token.single_word}, {"lstrip", token.lstrip},
          {"rstrip", token.rstrip},   {"normalized", token.normalized},   {"special", token.special}};
}

std::string list_entry(const AddedToken& token) {
  ordered_json entry{{"id", token.id}};
  entry.update(flags_of(token));
  return entry.dump();
}

std::string decoder_entry(const AddedToken& token) {
  return fmt::format("\"{}\": {}", token.id, flags_of(token).dump());
}

// Returns the files of a folder that change with the tokens.
std::map<std::string, std::string> changed_files(const std::filesystem::path& folder,
                                                 const std::vector<AddedToken>& tokens) {
  std::map<std::string, std::string> files;
  if (tokens.empty()) return files;
  const auto entries = [&](const auto& text_of) {
    std::vector<std::string> all;
    for (const AddedToken& token : tokens) all.push_back(text_of(token));
    return all;
  };
  const bool fast = std::filesystem::exists(folder / "tokenizer.json");
  if (fast) {
    std::string& json = files["tokenizer.json"] = read_file(folder / "tokenizer.json");
    append_to_member(json, "added_tokens", "[]", entries(list_entry));
  }
  const std::filesystem::path path = folder / "tokenizer_config.json";
  std::string config = std::filesystem::exists(path) ? read_file(path) : "{\n}\n";
  if (!fast || find_member(config, "added_tokens_decoder")) {
    append_to_member(config, "added_tokens_decoder", "{}", entries(decoder_entry));
    files["tokenizer_config.json"] = std::move(config);
  }
  return files;
}

}  // namespace

GrownTokenizer add_tokens(const std::filesystem::path& folder, const std::vector<NewToken>& tokens) {
  Tokenizer::Parts parts = read_folder(folder);
  std::vector<int32_t> new_ids;
  std::vector<std::string> known;
  std::vector<AddedToken> added;
  for (const NewToken& token : tokens) {
    const bool is_known = parts.id_of(token.text).has_value();
    if (is_known) known.push_back(token.text);
    if (std::ranges::find(parts.added, token.text, &AddedToken::content) != parts.added.end()) continue;
    parts.add({.content = token.text, .normalized = !token.special, .special = token.special}, folder.string());
    added.push_back(parts.added.back());
    if (!is_known) new_ids.push_back(added.back().id);
  }
  return {.tokenizer = Tokenizer(std::move(parts)),
          .new_ids = std::move(new_ids),
          .known = std::move(known),
          .files = changed_files(folder, added)};
}

}  // namespace megalith::tokenizer
