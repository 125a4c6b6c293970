// The message for an operation that did not finish in time: which operation, which ranks did not arrive, and what those
// ranks were last doing.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "megalith/comm/op/op_recorder.h"

namespace megalith::comm {

// Everything that the message is made from.
struct TimeoutFacts {
  int world_rank = 0;  // the rank that reports
  GroupInfo group;
  OpInfo op;
  std::chrono::milliseconds limit{};
  std::map<int, RankStatus> status;  // by world rank; a rank that never posted is absent
  // World ranks that the backend itself knows to be missing; if empty, they are derived from `status`.
  std::vector<int> missing;
  double now = 0;  // seconds since the epoch
};

// Returns the world ranks of the group that have not begun the operation, ascending.
std::vector<int> ranks_not_arrived(const TimeoutFacts& facts);
// Returns the whole message.
std::string describe_timeout(const TimeoutFacts& facts);

}  // namespace megalith::comm
