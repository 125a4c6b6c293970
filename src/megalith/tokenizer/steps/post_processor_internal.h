// Post-processors of a tokenizer.json: put special tokens around a sequence, such as BOS in front. Pairs of sequences
// ("$A [SEP] $B") are not supported: training encodes single texts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "megalith/tokenizer/text/json_node_internal.h"

namespace megalith::tokenizer {

// The ids around a sequence. Chains of processors are resolved while reading: each works on the result of the one
// before it.
struct PostProcessor {
  // Ids in front of the sequence and after it.
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

// Ids must be below `id_end`. Throws DataError, naming the field, for an unknown type or setting.
PostProcessor read_post_processor(const JsonNode& node, int64_t id_end);

}  // namespace megalith::tokenizer
