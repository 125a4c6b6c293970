// StartRecord: notes that a start of a job leaves for later ones in the store of torchrun's agents: how far it got, and
// when it failed. Our own launcher knows this by itself.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>

#include "megalith/comm/store/restarts.h"

namespace c10d {
class Store;
}

namespace megalith::comm {

// The record of one start. For the rank's own thread. Times come from the machine's clock, which may be another
// machine's after a restart.
class StartRecord {
 public:
  // `store` is that of the whole job; `start` is the number of starts before this one.
  StartRecord(const c10::intrusive_ptr<c10d::Store>& store, int64_t start);

  // Returns whether the run continues earlier starts: one of them got as far as begin(). Agents restart whatever the
  // exit code, so a first start may have ended because of bad input, and the next one must reject it again. `restarts`,
  // which the ranks agreed on, decides where each start has its own store.
  bool continues(int restarts) const;

  // Rank 0: begin() says that the settings are good and the run begins; note() says that a step was completed, with the
  // progress of this start so far (written a few times per second at most).
  void begin();
  void note(const Attempt& done);
  // Any rank: a failure was detected. The first one counts. Never throws: the run is ending anyway.
  void note_failure() noexcept;

  // Rank 0: completes `launch` with what earlier starts left: when they began and failed, and how far they got.
  // detect_seconds is the time since the last completed step.
  RankLaunch complete(RankLaunch launch) const;

 private:
  c10::intrusive_ptr<c10d::Store> record_of(int64_t start) const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const int64_t start_;
  int64_t written_ms_ = 0;
};

}  // namespace megalith::comm
