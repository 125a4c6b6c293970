// Numbers the starts of a job. Under torchrun the ranks have to agree on the number.
//
// Agents keep one store over all starts of a job, so keys that an earlier start left there must not be mistaken for
// this one's. And they count differently: an agent whose own ranks did not fail does not count a restart when the
// others start again.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>

namespace c10d {
class Store;
}

namespace megalith::comm {

// The result of the agreement.
struct AgreedStart {
  c10::intrusive_ptr<c10d::Store> store;  // restricted to the keys of this start
  int restarts = 0;                       // starts before this one: the largest count of an agent or the store
  int64_t earlier = 0;                    // the store's count
};

// Collective. `restarts` is the count of this rank's agent. Throws CommError when not all ranks arrive within
// `timeout`. Assumes that ranks of earlier starts have ended, which agents ensure.
//
// Each rank writes a number of its own choice; rank 0 proposes the list of numbers that it sees; a rank that finds its
// own number in the list agrees; one that does not arrived after the list was made, and waits for the next list.
AgreedStart agree_on_start(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, int restarts,
                           std::chrono::milliseconds timeout);

}  // namespace megalith::comm
