// Who writes what, where several ranks hold the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace megalith::checkpoint {

// A rectangle of a tensor that a rank holds.
struct ShareItem {
  uint64_t key = 0;      // the same for the same rectangle
  uint64_t bytes = 0;    //
  bool written = false;  // this rank's copy is number 0: somebody in the group has to write it
};

// The items of member `mine` that it writes, `items` being those of each member of a group. Of the holders of a
// rectangle exactly one writes it, provided that one of them has `written`. Rectangles with the fewest holders are
// dealt first, larger ones first among them, each to the holder with the fewest bytes so far: the same answer on every
// member.
std::vector<bool> share_work(const std::vector<std::vector<ShareItem>>& items, size_t mine);

}  // namespace megalith::checkpoint
