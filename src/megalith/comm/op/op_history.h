// OpHistory: the collectives that a rank has started in a group, in a form that the members can compare.
//
// NCCL does not notice when one member gives another size, dtype or reduction than the others, or another operation
// altogether: it hangs, or goes on with wrong numbers. Comparing each operation before it starts (MEGALITH_COMM_DEBUG)
// costs a round through the store. Comparing afterwards costs nothing that a step would feel: each operation gets a
// digest of itself and of all before it, so that members whose digests agree at one place have agreed up to there.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "megalith/comm/op/op.h"

namespace megalith::comm {

// The newest part of a history, as it is posted for the other ranks.
struct OpExcerpt {
  uint64_t last = 0;              // number of the newest operation; 0: none yet
  std::vector<uint32_t> digests;  // of the operations up to `last`, newest last

  std::optional<uint32_t> at(uint64_t sequence) const;
};

// Not thread-safe.
class OpHistory {
 public:
  static constexpr size_t kKept = 2048;  // more than a group starts between two looks
  static constexpr size_t kPosted = 16;

  // The next collective of the group.
  void add(const OpInfo& op);
  OpExcerpt excerpt(size_t operations) const;   // the newest ones, at most this many
  const OpInfo* find(uint64_t sequence) const;  // null if it is no longer kept, or not started yet

 private:
  struct Entry {
    uint32_t digest = 0;
    OpInfo op;
  };
  uint64_t last_ = 0;
  std::vector<Entry> ring_;  // operation n is at n % kKept
};

// Members of a group that have not started the same operations.
struct OpSplit {
  uint64_t sequence = 0;   // of the first operation that differs
  bool exact = true;       // false: an earlier one may be the first
  std::vector<int> fewer;  // world ranks; those that differ from most of the others
  std::vector<int> others;
};

// Compares the members' histories as far as they overlap. `all_have_ended`: nobody starts another operation, so that
// one that is missing is a difference too.
std::optional<OpSplit> find_split(const std::map<int, OpExcerpt>& members, bool all_have_ended);
// `own`: the operation as the rank that tells knows it; may be null.
std::string describe_split(const OpSplit& split, const std::string& group, int rank, const OpInfo* own);

}  // namespace megalith::comm
