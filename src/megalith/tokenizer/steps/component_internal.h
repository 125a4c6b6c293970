// Reads the parts of a tokenizer.json: each is an object whose "type" decides: {"type": "NFC"}, {"type": "Sequence",
// "normalizers": […]}. One table of names and readers per kind of part; the same table makes the message for a type
// that is not supported.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/tokenizer/regex/pattern_internal.h"
#include "megalith/tokenizer/text/json_node_internal.h"

namespace megalith::tokenizer {

// Returns the value that a string names. Throws DataError listing the allowed names.
template <typename T>
// read_choice<Behavior>(node, {{"Removed", kRemoved}, …}).
T read_choice(const JsonNode& node, std::initializer_list<std::pair<std::string_view, T>> choices) {
  const std::string name = node.string();
  // Collected for the message only.
  std::vector<std::string> names;
  for (const auto& [known, value] : choices) {
    if (known == name) return value;
    names.emplace_back(known);
  }
  node.fail(fmt::format("is \"{}\"; allowed: {}", name, list_in_words(names, names.size())));
}

// Sequences may contain sequences; a file that nests them deeper would exhaust the stack.
inline constexpr int kMaxDepth = 64;  // nesting of sequences

// Calls the reader for the object's "type" with the object and `args`. `kind` names what is being read, for the message
// about an unknown type.
template <typename Result, typename... Args>
// read_component<NormalizerPtr>(node, "normalizer", {{"Prepend", read_prepend_normalizer}, …}).
Result read_component(const JsonNode& node, std::string_view kind,
                      std::initializer_list<std::pair<std::string_view, Result (*)(const JsonNode&, Args...)>> readers,
                      Args... args) {
  if (node.depth() > kMaxDepth) node.fail(fmt::format("is nested more than {} levels deep", kMaxDepth));
  // Throws DataError when "type" is missing.
  const JsonNode type = node.at("type");
  const std::string name = type.string();
  std::vector<std::string> names;
  for (const auto& [known, read] : readers) {
    if (known == name) return read(node, args...);
    names.emplace_back(known);
  }
  type.fail(fmt::format("is \"{}\", a {} that is not supported; supported: {}", name, kind,
                        list_in_words(names, names.size())));
}

// Reads {"String": "…"} or {"Regex": "…"}.
Pattern read_pattern(const JsonNode& node);

}  // namespace megalith::tokenizer
