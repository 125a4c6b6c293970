// Vocabularies and merges as files hold them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "megalith/tokenizer/models/vocabulary_internal.h"
#include "megalith/tokenizer/text/json_node_internal.h"

namespace megalith::tokenizer {

// {"token": id, …}. Throws DataError for an id that is no number, out of range or given twice.
Vocabulary read_vocabulary(const JsonNode& node);
// One of them. Throws DataError, naming `where`, when the token or the id is taken.
void add_to_vocabulary(Vocabulary& vocabulary, std::string_view token, int32_t id, const std::string& where);

using MergeList = std::vector<std::pair<std::string, std::string>>;
// "left right", with exactly one blank. Throws DataError, naming `where`, for anything else.
std::pair<std::string, std::string> split_merge(std::string_view text, const std::string& where);
// The lines of a merges.txt.
MergeList parse_merges(std::string_view text, const std::string& file);

}  // namespace megalith::tokenizer
