// Checks the operations of a group: every collective and transfer that a run uses, with data that distinguishes ranks,
// elements and rounds.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "megalith/comm/group.h"

namespace megalith::parallel {

// A wrong result, as one rank saw it.
struct WrongAnswer {
  std::string group;       // "tp"
  std::vector<int> ranks;  // world ranks of the group
  std::string operation;   // "all_reduce(sum) of bfloat16"
  int rank = 0;            // world rank that got it
  std::string detail;      // "element 3 of 509 is 7 and should be 4"

  // Returns "all_reduce(sum) of bfloat16 in group tp (ranks 0 and 1), on rank 1: element 3 of 509 is 7 and should be
  // 4".
  std::string in_words() const;
};

// The outcome on this rank.
struct GroupCheck {
  int operations = 0;              // number of operations checked
  std::vector<WrongAnswer> wrong;  // as this rank saw them
};

// Runs, with fp32, bf16, int64 and bytes where the operation accepts them: all_reduce (sum, max, min, avg), all_gather,
// reduce_scatter, all_to_all (equal blocks; unequal ones, some of them empty), broadcast, send and recv along the group
// and back, batches of transfers both ways around the ring, all_gather_bytes, broadcast_bytes and barrier.
//
// Collective over the group, which has at least two ranks. Continues after a wrong answer, so that all of them are
// found; exceptions of operations are passed on. `round` is the same on all members and changes the data, so that the
// contents of a buffer from an earlier round are not mistaken for an answer.
GroupCheck check_group(const comm::Group& group, at::Device device, int round = 0);

}  // namespace megalith::parallel
