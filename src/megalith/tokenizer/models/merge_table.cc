// The two merging algorithms. Both merge the pair of lowest rank, leftmost first, so they give the same result:
//   l o w e r  with merges (l o), (lo w), (e r)  ->  lo w e r  ->  low e r  ->  low er
// Words are short, so nearly all of them take the quadratic one, which touches no heap; the other bounds the time for a
// piece of thousands of bytes without a break.
#include "megalith/tokenizer/models/merge_table_internal.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace megalith::tokenizer {

namespace {

constexpr uint32_t kEnd = UINT32_MAX;
constexpr size_t kKeptSymbols = size_t{1} << 16;  // memory for longer rows is freed

}  // namespace

MergeTable::MergeTable(size_t merges)
    : slots_(std::bit_ceil(std::max<size_t>(16, merges * 2))), mask_(slots_.size() - 1) {}

// Open addressing with linear probing; the table is at most half full, so a lookup touches about one cache line. A pair
// that is listed twice keeps its last merge, as in tokenizers' map.
void MergeTable::set(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = key_of(left, right);
  size_t slot = slot_of(key);
  while (slots_[slot].key != kFree && slots_[slot].key != key) slot = (slot + 1) & mask_;
  slots_[slot] = {key, merge};
}

void Merger::run(const MergeTable& table) {
  if (symbols.size() < 2) return;
  if (symbols.size() <= kShort) {
    run_short(table);
  } else {
    run_long(table);
  }
}

// O(n²) with a small constant: a linear scan for the minimum and moving the rest left, all in cache.
void Merger::run_short(const MergeTable& table) {
  size_t count = symbols.size();
  merges_.resize(count);
  for (size_t i = 0; i + 1 < count; ++i) merges_[i] = table.find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    const auto last = merges_.begin() + static_cast<std::ptrdiff_t>(count - 1);
    const auto best =
        std::min_element(merges_.begin(), last, [](const Merge& a, const Merge& b) { return a.rank < b.rank; });
    if (best->rank == Merge::kNoRank) break;
    const auto i = static_cast<size_t>(best - merges_.begin());
    symbols[i] = best->id;
    // Symbol i+1 and the merge at i disappear.
    std::copy(symbols.begin() + static_cast<std::ptrdiff_t>(i + 2),
              symbols.begin() + static_cast<std::ptrdiff_t>(count),
              symbols.begin() + static_cast<std::ptrdiff_t>(i + 1));
    std::copy(best + 1, last, best);
    --count;
    if (i + 1 < count) merges_[i] = table.find(symbols[i], symbols[i + 1]);
    if (i > 0) merges_[i - 1] = table.find(symbols[i - 1], symbols[i]);
  }
  symbols.resize(count);
}

// Computes the merge of a symbol with its right neighbor, and queues it.
void Merger::push(const MergeTable& table, uint32_t at) {
  merges_[at] = next_[at] == kEnd ? Merge{} : table.find(symbols[at], symbols[next_[at]]);
  if (merges_[at].rank == Merge::kNoRank) return;
  heap_.push_back(static_cast<uint64_t>(merges_[at].rank) << 32 | at);
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

// Symbols form a linked list; the heap holds rank and position of every possible merge. Entries that became invalid
// stay in the heap and are recognized when popped, because the rank at their position differs.
void Merger::run_long(const MergeTable& table) {
  const auto count = static_cast<uint32_t>(symbols.size());
  merges_.assign(count, {});
  next_.resize(count);
  before_.resize(count);
  heap_.clear();
  for (uint32_t i = 0; i < count; ++i) {
    next_[i] = i + 1 < count ? i + 1 : kEnd;
    before_[i] = i > 0 ? i - 1 : kEnd;
  }
  for (uint32_t i = 0; i < count; ++i) push(table, i);
  while (!heap_.empty()) {
    const auto at = static_cast<uint32_t>(heap_.front());
    const auto rank = static_cast<uint32_t>(heap_.front() >> 32);
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    heap_.pop_back();
    if (merges_[at].rank != rank) continue;  // outdated: one of the two symbols has changed
    const uint32_t gone = next_[at];
    symbols[at] = merges_[at].id;
    merges_[gone] = {};
    symbols[gone] = -1;
    next_[at] = next_[gone];
    if (next_[at] != kEnd) before_[next_[at]] = at;
    push(table, at);
    if (before_[at] != kEnd) push(table, before_[at]);
  }
  std::erase(symbols, -1);
  if (count > kKeptSymbols) {
    merges_ = {};
    next_ = before_ = {};
    heap_ = {};
  }
}

}  // namespace megalith::tokenizer
