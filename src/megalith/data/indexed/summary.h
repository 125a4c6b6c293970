// Statistics of an indexed dataset.
#pragma once

#include <cstdint>
#include <vector>

#include "megalith/data/indexed/indexed_dataset.h"

namespace megalith::data {

// Total tokens and the distribution of sequence lengths. Ranges double, so that a histogram of any dataset fits on a
// screen.
struct IndexedSummary {
  // Number of sequences with `from` to `to` tokens, inclusive. Ranges are 0, 1, 2 to 3, 4 to 7, ….
  struct LengthRange {
    int64_t from = 0, to = 0, sequences = 0;
  };
  int64_t tokens = 0, shortest = 0, longest = 0;
  std::vector<LengthRange> lengths;  // from the shortest to the longest, including empty ranges between them
};

// Computes the statistics. Reads all lengths, but no tokens. The lengths are in the .idx file, so a corpus of terabytes
// takes seconds.
IndexedSummary summarize(const IndexedDataset& dataset);

}  // namespace megalith::data
