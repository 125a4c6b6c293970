// What the starts of a job leave for the starts after them, in the store of torchrun's agents: how far each came, and
// when it failed. What a launcher of ours knows by itself.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>

#include "megalith/comm/store/restarts.h"

namespace c10d {
class Store;
}

namespace megalith::comm {

// Of one start. Used by the rank's own thread. Times are those of the machines' clocks, which may be another machine's
// after a restart.
class StartRecord {
 public:
  // `store`: of the whole job. `start`: how many starts were before this one.
  StartRecord(const c10::intrusive_ptr<c10d::Store>& store, int64_t start);

  // Whether the run goes on from earlier starts: one of them got as far as begin(). Agents start again whatever an exit
  // code says, so a first start may have ended because of bad input, and the next one is to refuse it, too. `restarts`:
  // what the ranks agreed on; it decides where each start has a store of its own.
  bool continues(int restarts) const;

  // Rank 0: the run begins, its settings are good; a step was done, which makes `done` of this start (written a few
  // times a second at most).
  void begin();
  void note(const Attempt& done);
  // Any rank: a failure was seen. The first one counts. Never throws: the run is ending anyway.
  void note_failure() noexcept;

  // Rank 0: `launch` with what the earlier starts left: began, failed, how far they came. detect_seconds is the time
  // from the last step that was done.
  RankLaunch complete(RankLaunch launch) const;

 private:
  c10::intrusive_ptr<c10d::Store> record_of(int64_t start) const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const int64_t start_;
  int64_t written_ms_ = 0;
};

}  // namespace megalith::comm
