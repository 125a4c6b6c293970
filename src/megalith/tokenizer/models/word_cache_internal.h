// The ids of words that were seen lately. Words repeat: most lookups end here.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "megalith/tokenizer/text/hash_internal.h"

namespace megalith::tokenizer {

// Of a fixed size (kSlots * 64 bytes): a new word replaces the one in its slot. For one thread.
class WordCache {
 public:
  static constexpr size_t kMaxBytes = 30;  // longer words are rare, and not kept
  static constexpr size_t kMaxIds = 8;

  WordCache() : slots_(kSlots) {}

  // Appends the ids of the word; false when it is not here. Requires 0 < word.size() <= kMaxBytes.
  bool find(std::string_view word, uint64_t hash, std::vector<int32_t>& ids) const {
    const Slot& slot = slots_[hash % kSlots];
    if (slot.length != word.size() || std::memcmp(slot.word.data(), word.data(), word.size()) != 0) return false;
    ids.insert(ids.end(), slot.ids.begin(), slot.ids.begin() + slot.count);
    return true;
  }

  void put(std::string_view word, uint64_t hash, std::span<const int32_t> ids) {
    if (ids.size() > kMaxIds) return;
    Slot& slot = slots_[hash % kSlots];
    slot.length = static_cast<uint8_t>(word.size());
    slot.count = static_cast<uint8_t>(ids.size());
    std::memcpy(slot.word.data(), word.data(), word.size());
    std::ranges::copy(ids, slot.ids.begin());
  }

 private:
  static constexpr size_t kSlots = size_t{1} << 15;
  struct alignas(64) Slot {
    uint8_t length = 0;  // 0: free
    uint8_t count = 0;
    std::array<char, kMaxBytes> word;
    std::array<int32_t, kMaxIds> ids;
  };
  static_assert(sizeof(Slot) == 64);

  std::vector<Slot> slots_;
};

}  // namespace megalith::tokenizer
