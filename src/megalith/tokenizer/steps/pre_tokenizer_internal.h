// Pre-tokenizers of a tokenizer.json: how a text is cut into the pieces that a model sees.
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
  virtual void apply(Pieces& pieces) const = 0;

  // If the last step turns bytes into the characters that stand for them (ByteLevel): leave the bytes from now on, and
  // say that the pieces are bytes. Otherwise false, and nothing happens.
  virtual bool leave_bytes() { return false; }
};

// Throws DataError, naming the field, for a type or a setting that is not known.
std::unique_ptr<PreTokenizer> read_pre_tokenizer(const JsonNode& node);

}  // namespace megalith::tokenizer
