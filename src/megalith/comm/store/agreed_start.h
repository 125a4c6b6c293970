// Which start of the job is this? Under torchrun the ranks have to agree on it.
//
// Agents keep one store over all starts of a job, so what an earlier start left there must not be taken for this one's.
// And they do not count alike: an agent whose own ranks did not fail counts no restart when the others start again.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>

namespace c10d {
class Store;
}

namespace megalith::comm {

struct AgreedStart {
  c10::intrusive_ptr<c10d::Store> store;  // with keys of this start alone
  int restarts = 0;                       // starts before this one: the most that an agent, or the store, knows of
  int64_t earlier = 0;                    // those that the store knows of
};

// Collective. `restarts`: what this rank's agent counts. Throws CommError when not all ranks come within `timeout`.
// Ranks of earlier starts have ended (agents see to that).
//
// Each rank writes a number of its own choice; rank 0 proposes the list of numbers that it sees; who finds its own in
// it agrees; who does not came after the list was made, and waits for the next.
AgreedStart agree_on_start(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, int restarts,
                           std::chrono::milliseconds timeout);

}  // namespace megalith::comm
