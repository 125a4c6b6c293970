#include "megalith/tokenizer/vocabulary_json_internal.h"

#include "megalith/base/error.h"

namespace megalith::tokenizer {

namespace {

// "left right": exactly one blank.
std::optional<std::pair<std::string, std::string>> split_merge(std::string_view text) {
  const size_t blank = text.find(' ');
  if (blank == std::string_view::npos || text.find(' ', blank + 1) != std::string_view::npos) return std::nullopt;
  return std::pair(std::string(text.substr(0, blank)), std::string(text.substr(blank + 1)));
}

}  // namespace

Vocabulary read_vocabulary(const JsonNode& node) {
  if (!node.is_object()) node.fail("is not an object of tokens and their ids");
  Vocabulary vocabulary;
  size_t bytes = 0;
  for (const auto& [token, id] : node.raw().items()) bytes += token.size();
  vocabulary.reserve(node.raw().size(), bytes);
  for (const auto& [token, value] : node.raw().items()) {
    if (!value.is_number_integer() || value < 0 || value >= Vocabulary::kMaxIds)
      node.at(token).fail(
          fmt::format("is no token id; a whole number from 0 to {} is expected", Vocabulary::kMaxIds - 1));
    const auto id = value.get<int32_t>();
    if (const auto other = vocabulary.token(id))
      node.fail(fmt::format("gives id {} to both \"{}\" and \"{}\"", id, *other, token));
    vocabulary.add(token, id);
  }
  return vocabulary;
}

MergeList read_merges(const JsonNode& node) {
  MergeList merges;
  const size_t count = node.array_size();
  merges.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const nlohmann::json& value = node.raw()[i];
    if (value.is_string()) {
      auto merge = split_merge(value.get_ref<const std::string&>());
      if (!merge)
        node.at(i).fail(
            fmt::format("is \"{}\"; two tokens with a blank between them are expected", value.get<std::string>()));
      merges.push_back(std::move(*merge));
    } else {
      const bool pair = value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string();
      if (!pair) node.at(i).fail("is no pair of tokens");
      merges.emplace_back(value[0].get<std::string>(), value[1].get<std::string>());
    }
  }
  return merges;
}

MergeList parse_merges(std::string_view text, const std::string& file) {
  MergeList merges;
  size_t line_number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    auto merge = split_merge(line);
    check<DataError>(merge.has_value(), "{}: line {} is \"{}\"; two tokens with a blank between them are expected",
                     file, line_number, line);
    merges.push_back(std::move(*merge));
  }
  return merges;
}

}  // namespace megalith::tokenizer
