// Normalizers of a tokenizer.json: what happens to a text before it is cut.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "megalith/tokenizer/text/json_node_internal.h"

namespace megalith::tokenizer {

// Immutable and safe to share between threads.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // `text` is valid UTF-8, and so is what it becomes.
  virtual void apply(std::string& text) const = 0;
};

// Throws DataError, naming the field, for a type or a setting that is not known.
std::unique_ptr<Normalizer> read_normalizer(const JsonNode& node);

}  // namespace megalith::tokenizer
