#include "megalith/data/indexed/summary.h"

#include <algorithm>
#include <bit>

namespace megalith::data {

// Ranges are powers of two: the number of bits of a length is the index of its range.
IndexedSummary summarize(const IndexedDataset& dataset) {
  IndexedSummary summary;
  std::vector<int64_t> counts(64);  // by the bits of the length
  summary.shortest = dataset.sequence_count() > 0 ? dataset.length(0) : 0;
  for (int64_t i = 0; i < dataset.sequence_count(); ++i) {
    const int64_t length = dataset.length(i);
    summary.tokens += length;
    summary.shortest = std::min(summary.shortest, length);
    summary.longest = std::max(summary.longest, length);
    ++counts[static_cast<size_t>(std::bit_width(static_cast<uint64_t>(length)))];
  }
  if (dataset.sequence_count() == 0) return summary;
  // Lengths 5 to 7 have three bits: the range from 4 to 7. Ranges outside of those that occur are left out.
  const int first = std::bit_width(static_cast<uint64_t>(summary.shortest));
  const int last = std::bit_width(static_cast<uint64_t>(summary.longest));
  for (int bits = first; bits <= last; ++bits)
    summary.lengths.push_back({.from = bits == 0 ? 0 : int64_t{1} << (bits - 1),
                               .to = (int64_t{1} << bits) - 1,
                               .sequences = counts[static_cast<size_t>(bits)]});
  return summary;
}

}  // namespace megalith::data
