// Reads vocabularies and merges from files.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "megalith/tokenizer/models/vocabulary_internal.h"
#include "megalith/tokenizer/text/json_node_internal.h"

namespace megalith::tokenizer {

// Reads {"token": id, …}. Throws DataError for an id that is not a number, is out of range, or occurs twice.
// For vocab.json; the vocabulary of a tokenizer.json is read while parsing (tokenizer_document_internal.h).
Vocabulary read_vocabulary(const JsonNode& node);
// Adds one token. Throws DataError, naming `where`, when the token or the id is taken.
void add_to_vocabulary(Vocabulary& vocabulary, std::string_view token, int32_t id, const std::string& where);

// Pairs of tokens, by rank.
using MergeList = std::vector<std::pair<std::string, std::string>>;
// Splits "left right" at its only space. Throws DataError, naming `where`, for anything else.
std::pair<std::string, std::string> split_merge(std::string_view text, const std::string& where);
// Parses the lines of a merges.txt.
MergeList parse_merges(std::string_view text, const std::string& file);

}  // namespace megalith::tokenizer
