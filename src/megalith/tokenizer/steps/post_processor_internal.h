// Post-processors of a tokenizer.json: the special tokens that are put around a sequence.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "megalith/tokenizer/text/json_node_internal.h"

namespace megalith::tokenizer {

// A sequence and the ids around it, as one row of parts. Sequences of processors are applied while reading: a processor
// works on what the one before it gave.
struct PostProcessor {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

// Ids must be below `id_end`. Throws DataError, naming the field, for a type or a setting that is not known.
PostProcessor read_post_processor(const JsonNode& node, int64_t id_end);

}  // namespace megalith::tokenizer
