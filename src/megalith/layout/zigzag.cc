// With causal attention later tokens cost more, so a rank gets one early and one late chunk: rank r of cp has chunks r
// and 2 cp - 1 - r of each sequence. For cp 2 and a sequence of 8 tokens: rank 0 has 0 1 6 7, rank 1 has 2 3 4 5.
#include "megalith/layout/zigzag.h"

#include "megalith/base/error.h"

namespace megalith::layout {

std::vector<TokenRange> zigzag_ranges(std::span<const int64_t> cumulative, int cp, int cp_rank) {
  check(cp >= 1 && cp_rank >= 0 && cp_rank < cp, "context-parallel rank {} of {}", cp_rank, cp);
  std::vector<TokenRange> ranges;
  // Joins ranges that touch: the two middle chunks on the last rank, and whole sequences with cp 1.
  const auto add = [&ranges](int64_t begin, int64_t end) {
    if (!ranges.empty() && ranges.back().end == begin)
      ranges.back().end = end;
    else
      ranges.push_back({begin, end});
  };
  const int64_t chunks = 2 * int64_t{cp};
  for (size_t s = 0; s + 1 < cumulative.size(); ++s) {
    const int64_t begin = cumulative[s], length = cumulative[s + 1] - begin;
    if (cp == 1) {
      add(begin, begin + length);
      continue;
    }
    check<DataError>(length % chunks == 0,
                     "sequence {} has {} tokens, not a multiple of 2 * context_parallel_size = {}; pad it to {}", s,
                     length, chunks, (length / chunks + 1) * chunks);
    const int64_t chunk = length / chunks;
    for (const int64_t index : {int64_t{cp_rank}, chunks - 1 - cp_rank})
      add(begin + index * chunk, begin + (index + 1) * chunk);
  }
  return ranges;
}

}  // namespace megalith::layout
