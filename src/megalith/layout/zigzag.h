// Deals sequences to the context-parallel ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace megalith::layout {

// Tokens [begin, end).
struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const TokenRange&) const = default;
};

// Each sequence is cut into 2·cp chunks of equal length; a rank keeps chunks cp_rank and 2·cp-1-cp_rank. Under causal
// attention an early chunk costs little and a late one much, so every pair costs the same. For cp = 2:
//
//   chunk  0 1 2 3      attention to all chunks before and to itself: 1 + 4 = 2 + 3
//   rank   0 1 1 0

// Returns the tokens that a rank keeps, in order, with adjacent ranges joined. `cumulative` starts with 0 and ends with
// the number of tokens. Throws DataError, naming the sequence and the next length that fits, for a length that is not a
// multiple of 2·cp (cp 1 takes any).
std::vector<TokenRange> zigzag_ranges(std::span<const int64_t> cumulative, int cp, int cp_rank);

}  // namespace megalith::layout
