// Normalizers of a tokenizer.json: change a text before it is cut into pieces: normal forms, letter case, replacements.
// Offsets into the original text are not kept; token_starts.cc recovers them where they are needed.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "megalith/tokenizer/text/json_node_internal.h"

namespace megalith::tokenizer {

// One step, or a sequence of them. Immutable and safe to share between threads.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // `text` must be valid UTF-8, and stays valid.
  virtual void apply(std::string& text) const = 0;
};

// Throws DataError, naming the field, for an unknown type or setting.
std::unique_ptr<Normalizer> read_normalizer(const JsonNode& node);

}  // namespace megalith::tokenizer
