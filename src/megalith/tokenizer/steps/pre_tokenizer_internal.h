// Pre-tokenizers of a tokenizer.json: cut a text into the pieces that a model sees.
#pragma once

#include <memory>
#include <vector>

#include "megalith/tokenizer/text/json_node_internal.h"
#include "megalith/tokenizer/text/pieces_internal.h"

namespace megalith::tokenizer {

// Immutable once the tokenizer is loaded, and safe to share between threads.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Cuts the pieces further, or rewrites them.
  virtual void apply(Pieces& pieces) const = 0;

  // If the last step turns bytes into the characters that stand for them (ByteLevel), makes it leave the bytes alone
  // from now on, and returns true: pieces are then bytes. Otherwise does nothing and returns false.
  virtual bool leave_bytes() { return false; }
};

// Throws DataError, naming the field, for an unknown type or setting.
std::unique_ptr<PreTokenizer> read_pre_tokenizer(const JsonNode& node);

}  // namespace megalith::tokenizer
