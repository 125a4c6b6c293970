// Decoders of a tokenizer.json: how tokens become text again.
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
  // Changes the tokens of a whole sequence; the text is what they are one behind the other.
  virtual void apply(std::vector<std::string>& tokens) const = 0;
  // Whether each token stands for bytes, whatever its neighbours are, as with ByteLevel. Then bytes_of gives them, and
  // the text is those of all tokens with U+FFFD for what is not valid.
  virtual bool is_bytewise() const { return false; }
  virtual std::string bytes_of(std::string_view token) const { return std::string(token); }
};

// Throws DataError, naming the field, for a type or a setting that is not known.
std::unique_ptr<Decoder> read_decoder(const JsonNode& node);

// For a vocabulary of bytes (<0x00> to <0xFF>): bytewise; other tokens are text.
std::unique_ptr<Decoder> make_byte_decoder();

}  // namespace megalith::tokenizer
