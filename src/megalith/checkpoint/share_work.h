// Decides which rank writes a rectangle that several ranks hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace megalith::checkpoint {

// A rectangle of a tensor that a rank holds. Ranks exchange it as raw bytes.
struct ShareItem {
  uint64_t key = 0;      // equal for equal rectangles
  uint64_t bytes = 0;    // size of the rectangle
  bool written = false;  // this rank holds copy number 0, so some member of this group must write it
};

// Returns, for each item of member `mine`, whether that member writes it; `items` lists the items of each member of a
// group. Exactly one holder writes a rectangle, provided that one of them has `written`. Rectangles with the fewest
// holders are assigned first, larger ones first among them, each to the holder with the fewest bytes so far. Every
// member computes the same assignment.
std::vector<bool> share_work(const std::vector<std::vector<ShareItem>>& items, size_t mine);

}  // namespace megalith::checkpoint
