// Vocabularies and merges as files hold them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "megalith/tokenizer/json_node_internal.h"
#include "megalith/tokenizer/vocabulary_internal.h"

namespace megalith::tokenizer {

// {"token": id, …}. Throws DataError for an id that is no number, out of range or given twice.
Vocabulary read_vocabulary(const JsonNode& node);

using MergeList = std::vector<std::pair<std::string, std::string>>;
// ["left right", …] or [["left", "right"], …].
MergeList read_merges(const JsonNode& node);
// The lines of a merges.txt.
MergeList parse_merges(std::string_view text, const std::string& file);

}  // namespace megalith::tokenizer
