// Ranks as threads of one process: the backend that most tests run on.
//
// Every collective is one meeting: the k-th collective of each member joins meeting k of the group; the last to arrive
// does all the work in rank order and wakes the others. So results do not depend on timing, and a small all-reduce
// costs one wake-up. A send finishes when its receive has taken the data, as on NCCL, so code that would deadlock there
// also deadlocks here.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "megalith/comm/op/backend.h"

namespace megalith::comm {

class Meeting;

// Shared by the threads of one in-process world: the place where the members of each group meet. Thread-safe.
class ThreadHub {
 public:
  ThreadHub();  // without groups
  ~ThreadHub();
  // Returns this member's end of group `id`. All members pass the same id and size.
  std::unique_ptr<Backend> connect(const std::string& id, int rank, int size);

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Meeting>> meetings_;  // guarded by mutex_; by group id
};

}  // namespace megalith::comm
