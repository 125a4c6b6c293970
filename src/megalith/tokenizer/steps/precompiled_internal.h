// SentencePiece's normalization rules as stored in a tokenizer.json ("Precompiled"): a table from texts to texts.
#pragma once

#include <memory>

#include "megalith/tokenizer/steps/normalizer_internal.h"

namespace megalith::tokenizer {

// Throws DataError when the table (base64 of a double-array trie and its texts) is broken.
// Rules such as ﬁ -> fi and full-width letters -> letters, compiled by SentencePiece from NFKC and its own additions.
std::unique_ptr<Normalizer> read_precompiled(const JsonNode& node);

}  // namespace megalith::tokenizer
