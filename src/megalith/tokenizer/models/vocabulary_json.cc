// Reads vocabularies and merges in the forms that files have them: {"hello": 0, "Ġworld": 1}, and "Ġ w" per line.
#include "megalith/tokenizer/models/vocabulary_json_internal.h"

#include "megalith/base/error.h"

namespace megalith::tokenizer {

void add_to_vocabulary(Vocabulary& vocabulary, std::string_view token, int32_t id, const std::string& where) {
  if (const auto other = vocabulary.token(id))
    throw DataError(fmt::format("{} gives id {} to both \"{}\" and \"{}\"", where, id, *other, token));
  if (const auto other = vocabulary.find(token))
    throw DataError(fmt::format("{} has \"{}\" twice, with the ids {} and {}", where, token, *other, id));
  vocabulary.add(token, id);
}

// "Ġ w" -> {"Ġ", "w"}. Tokens with a space cannot be written in this form; newer files use pairs instead.
std::pair<std::string, std::string> split_merge(std::string_view text, const std::string& where) {
  const size_t blank = text.find(' ');
  if (blank == std::string_view::npos || text.find(' ', blank + 1) != std::string_view::npos)
    throw DataError(fmt::format("{} is \"{}\"; two tokens separated by a space are expected", where, text));
  return {std::string(text.substr(0, blank)), std::string(text.substr(blank + 1))};
}

// Sums up the sizes first, so that nothing is reallocated.
Vocabulary read_vocabulary(const JsonNode& node) {
  if (!node.is_object()) node.fail("is not an object of tokens and their ids");
  Vocabulary vocabulary;
  size_t bytes = 0;
  for (const auto& [token, id] : node.raw().items()) bytes += token.size();
  vocabulary.reserve(node.raw().size(), bytes);
  for (const auto& [token, value] : node.raw().items()) {
    if (!value.is_number_integer() || value < 0 || value >= Vocabulary::kMaxIds)
      node.at(token).fail(
          fmt::format("is not a token id; a whole number from 0 to {} is expected", Vocabulary::kMaxIds - 1));
    add_to_vocabulary(vocabulary, token, value.get<int32_t>(), node.where());
  }
  return vocabulary;
}

// The first line may be "#version: 0.2"; other lines that start with # are merges.
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
    merges.push_back(split_merge(line, fmt::format("{}: line {}", file, line_number)));
  }
  return merges;
}

}  // namespace megalith::tokenizer
