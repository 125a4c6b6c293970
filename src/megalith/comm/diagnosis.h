// The message for an operation that did not end in time: which one, who did not arrive, what those ranks were last
// doing.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "megalith/comm/op/op_recorder.h"

namespace megalith::comm {

struct TimeoutFacts {
  int world_rank = 0;  // who is telling
  GroupInfo group;
  OpInfo op;
  std::chrono::milliseconds limit{};
  std::map<int, RankStatus> status;  // by world rank; a rank that never posted is absent
  // World ranks that the backend itself knows to be missing; empty: told from `status`.
  std::vector<int> missing;
  double now = 0;  // seconds since the epoch
};

// World ranks of the group that have not begun the operation, in order.
std::vector<int> ranks_not_arrived(const TimeoutFacts& facts);
std::string describe_timeout(const TimeoutFacts& facts);

}  // namespace megalith::comm
