// Model: the part of a tokenizer that turns pieces of text into ids.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/tokenizer/text/pieces_internal.h"

namespace megalith::tokenizer {

// Immutable; any number of threads may call any function at the same time.
class Model {
 public:
  virtual ~Model() = default;

  // Appends the ids of all pieces, one piece after the other.
  // Pieces are independent of one another: no token spans two.
  virtual void tokenize(const Pieces& pieces, std::vector<int32_t>& ids) const = 0;

  // Returns the id of a token of the model; std::nullopt when there is none. Added tokens are not the model's.
  virtual std::optional<int32_t> id_of(std::string_view token) const = 0;
  // Returns std::nullopt for an id without a token.
  virtual std::optional<std::string_view> token_of(int32_t id) const = 0;
  // The number of tokens, and one more than the largest id.
  virtual size_t size() const = 0;
  virtual int32_t id_end() const = 0;

  // Returns whether tokenize takes plain bytes instead of the characters that stand for them
  // (byte_alphabet_internal.h).
  virtual bool takes_bytes() const { return false; }
};

}  // namespace megalith::tokenizer
