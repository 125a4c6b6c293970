// What a pair of files holds, in numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "megalith/data/indexed/indexed_dataset.h"

namespace megalith::data {

struct IndexedSummary {
  // Sequences of `from` to `to` tokens, both included: 0, 1, 2 to 3, 4 to 7, ….
  struct LengthRange {
    int64_t from = 0, to = 0, sequences = 0;
  };
  int64_t tokens = 0, shortest = 0, longest = 0;
  std::vector<LengthRange> lengths;  // from the shortest to the longest, also empty ranges between
};

// Reads all lengths, no tokens.
IndexedSummary summarize(const IndexedDataset& dataset);

}  // namespace megalith::data
