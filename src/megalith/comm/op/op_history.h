// OpHistory: the collectives that a rank has started in a group, in a form that members can compare.
//
// NCCL does not notice when a member passes another size, dtype or reduction than the others, or calls another
// operation altogether: it hangs, or continues with wrong numbers. Comparing each operation before it starts
// (MEGALITH_COMM_DEBUG) costs a round trip through the store. Comparing afterwards is free for the step: each operation
// gets a digest of itself and of all before it, so members whose digests agree at one operation have agreed up to
// there.
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
  uint64_t last = 0;              // number of the newest operation; 0 if there is none yet
  std::vector<uint32_t> digests;  // digests of the operations up to `last`, newest last

  // Returns the digest of one operation; std::nullopt if it is not part of the excerpt.
  std::optional<uint32_t> at(uint64_t sequence) const;
};

// Not thread-safe.
class OpHistory {
 public:
  static constexpr size_t kKept = 2048;  // more than a group starts between two comparisons
  static constexpr size_t kPosted = 16;  // digests in each status

  // Adds the next collective of the group.
  void add(const OpInfo& op);
  OpExcerpt excerpt(size_t operations) const;   // the newest ones, at most this many
  const OpInfo* find(uint64_t sequence) const;  // nullptr if it is no longer kept, or not started yet

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
  uint64_t sequence = 0;    // the first operation that differs
  bool exact = true;        // if false, an earlier one may be the first
  std::vector<int> fewer;   // world ranks in the minority
  std::vector<int> others;  // the majority
};

// Compares the members' histories as far as they overlap. With `all_have_ended`, nobody starts another operation, so a
// missing one is a difference too. Returns std::nullopt if they agree.
std::optional<OpSplit> find_split(const std::map<int, OpExcerpt>& members, bool all_have_ended);
// Returns the message. `own` is the operation as the reporting rank knows it; may be nullptr.
std::string describe_split(const OpSplit& split, const std::string& group, int rank, const OpInfo* own);

}  // namespace megalith::comm
