// MergeTable and Merger: the order in which neighbors merge and the results, and the merging itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace megalith::tokenizer {

// The result of merging a pair of neighbors.
struct Merge {
  // Higher than every rank, so a search for the lowest one needs no special case.
  static constexpr uint32_t kNoRank = UINT32_MAX;
  uint32_t rank = kNoRank;  // lower ranks merge first
  int32_t id = -1;          // id of the result
};

// An open-addressing hash table from pairs of ids to merges.
class MergeTable {
 public:
  // Makes room for so many merges; the table does not grow.
  explicit MergeTable(size_t merges);
  // If the pair is already there, it takes the new rank, as in tokenizers.
  void set(int32_t left, int32_t right, Merge merge);

  // Returns rank == kNoRank for a pair that does not merge.
  Merge find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    // Ends, because the table always has free slots.
    for (size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return slots_[slot].merge;
      if (slots_[slot].key == kFree) return {};
    }
  }

 private:
  static constexpr uint64_t kFree = UINT64_MAX;
  struct Slot {
    // Two ids of at most 31 bits never make kFree.
    uint64_t key = kFree;
    Merge merge;
  };

  // Both ids in one number, so that a comparison is one instruction.
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  // Fibonacci hashing: the constant is 2^64 / golden ratio.
  size_t slot_of(uint64_t key) const { return (key * 0x9E3779B97F4A7C15u >> 20) & mask_; }

  std::vector<Slot> slots_;  // at most half full
  size_t mask_;
};

// Merges a row of symbols. Short rows are scanned for the lowest rank after each merge; long ones keep a heap, so that
// a piece of n symbols takes O(n log n). Reusable; for one thread.
class Merger {
 public:
  std::vector<int32_t> symbols;  // in: the characters; out: the tokens

  // Merges `symbols` in place until no two neighbors merge.
  void run(const MergeTable& table);

 private:
  // The two algorithms of merge_table.cc; they give the same result.
  void run_short(const MergeTable& table);
  void run_long(const MergeTable& table);
  // Updates the merge of a symbol with its neighbor, for run_long.
  void push(const MergeTable& table, uint32_t at);

  static constexpr size_t kShort = 48;  // up to this length, scanning is faster than a heap

  std::vector<Merge> merges_;            // merge of symbol i with its right neighbor
  std::vector<uint32_t> next_, before_;  // links between the remaining symbols
  // Used by run_long only; they keep their memory for the next piece.
  std::vector<uint64_t> heap_;  // rank << 32 | position, lowest first
};

}  // namespace megalith::tokenizer
