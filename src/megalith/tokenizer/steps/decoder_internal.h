// Decoders of a tokenizer.json: turn tokens back into text. They undo what pre-tokenizers and normalizers did to spaces
// and bytes, as far as that can be undone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "megalith/tokenizer/text/json_node_internal.h"

namespace megalith::tokenizer {

// Immutable and safe to share between threads.
class Decoder {
 public:
  virtual ~Decoder() = default;
  // Changes the tokens of a whole sequence; the text is their concatenation.
  virtual void apply(std::vector<std::string>& tokens) const = 0;
  // Returns whether each token stands for bytes regardless of its neighbors, as with ByteLevel. Then bytes_of returns
  // them, and the text is the bytes of all tokens with U+FFFD for invalid parts.
  virtual bool is_bytewise() const { return false; }
  virtual std::string bytes_of(std::string_view token) const { return std::string(token); }
};

// Throws DataError, naming the field, for an unknown type or setting.
std::unique_ptr<Decoder> read_decoder(const JsonNode& node);

// Returns the decoder of a vocabulary of bytes (<0x00> to <0xFF>): bytewise; other tokens are text.
std::unique_ptr<Decoder> make_byte_decoder();

}  // namespace megalith::tokenizer
