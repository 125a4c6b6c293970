#include "megalith/checkpoint/share_work.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>

namespace megalith::checkpoint {

namespace {

// A greedy assignment. Rectangles with a single holder leave no choice, so they are counted first; those with many
// holders then even out the load. Sorting large ones first keeps the remaining imbalance small.
struct Rectangle {
  uint64_t key = 0, bytes = 0;
  bool written = false;
  std::vector<std::pair<size_t, size_t>> holders;  // member, and number of its item
};

}  // namespace

// Deterministic: the order of `all` depends on sizes and keys alone, and ties go to the first holder, so that every
// member computes the same assignment without a further message.
std::vector<bool> share_work(const std::vector<std::vector<ShareItem>>& items, size_t mine) {
  std::unordered_map<uint64_t, size_t> by_key;
  std::vector<Rectangle> all;
  for (size_t member = 0; member < items.size(); ++member)
    for (size_t number = 0; number < items[member].size(); ++number) {
      const ShareItem& item = items[member][number];
      const auto [entry, is_new] = by_key.emplace(item.key, all.size());
      if (is_new) all.push_back({item.key, item.bytes, false, {}});
      Rectangle& rectangle = all[entry->second];
      rectangle.written |= item.written;
      rectangle.holders.emplace_back(member, number);
    }
  std::ranges::sort(all, std::less<>(),
                    [](const Rectangle& r) { return std::tuple(r.holders.size(), ~r.bytes, r.key); });  // ~: descending
  std::vector<uint64_t> load(items.size());
  std::vector<bool> writes(items[mine].size());
  for (const Rectangle& rectangle : all) {
    if (!rectangle.written) continue;
    const auto& [member, number] = *std::ranges::min_element(rectangle.holders, std::less<>(),
                                                             [&](const auto& holder) { return load[holder.first]; });
    load[member] += rectangle.bytes;
    if (member == mine) writes[number] = true;
  }
  return writes;
}

}  // namespace megalith::checkpoint
