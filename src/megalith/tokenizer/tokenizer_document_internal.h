// A parsed tokenizer.json, with its two large members already in the form in which they are used.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "megalith/tokenizer/models/vocabulary_json_internal.h"

namespace megalith::tokenizer {

// The document without model.vocab and model.merges, and these two.
struct TokenizerDocument {
  // JsonNodes refer to it, so it outlives them.
  nlohmann::json rest;                   // everything else
  std::optional<Vocabulary> vocabulary;  // model.vocab, when it is an object
  std::optional<MergeList> merges;       // model.merges, when it is an array
};

// Parses in one pass, without creating a JSON value for each of hundreds of thousands of tokens and merges, which takes
// a third of the time of parsing into a plain document. Throws DataError, naming `file`, for invalid JSON and for a bad
// token or merge.
TokenizerDocument parse_tokenizer_document(std::string_view text, const std::string& file);

}  // namespace megalith::tokenizer
