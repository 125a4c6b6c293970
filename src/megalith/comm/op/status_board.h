// StatusBoard: where ranks learn how the others are. Through the store for processes, in memory for threads.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "megalith/comm/op/op_recorder.h"

namespace megalith::comm {

// The premature end of a run: the rank that failed first, and why.
struct Failure {
  int rank = -1;
  std::string reason;
};

// Thread-safe.
class StatusBoard {
 public:
  virtual ~StatusBoard() = default;
  // Returns the newest status of each rank that has ever posted one.
  virtual std::map<int, RankStatus> read(const std::vector<int>& ranks) = 0;
  // Tells every rank that the run is over, and why. The first report wins.
  virtual void report_failure(const Failure& failure) = 0;
  // Returns the first failure that any rank (or launcher) has reported; waits up to `patience` for one.
  virtual std::optional<Failure> failure(std::chrono::milliseconds patience) = 0;
};

}  // namespace megalith::comm
