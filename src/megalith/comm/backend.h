// The seam between Group and what moves the bytes: Gloo, NCCL or threads of one process.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "megalith/comm/op.h"

namespace megalith::comm {

// One operation under way. The tensors of its Op stay alive until it has ended, even when the handle is dropped.
class PendingOp {
 public:
  virtual ~PendingOp() = default;

  // Waits for at most `limit`. True: the operation is done (on CUDA: ordered on the current stream). False: not yet; it
  // may be asked again. Throws CommError when the operation has failed or was aborted.
  virtual bool wait_for(std::chrono::milliseconds limit) = 0;
  // True when it is over, well or badly, without waiting.
  virtual bool done() = 0;
  // True where wait_for only makes the current stream wait, so that the operation may still be under way after it.
  virtual bool runs_behind() const { return false; }
  // Ends a wait_for() that another thread is in, with a CommError saying `reason`. Called from the watchdog.
  virtual void abort(const std::string& reason) = 0;
  // Group ranks known not to have arrived, where the backend can tell (threads of one process); empty otherwise.
  virtual std::vector<int> missing() { return {}; }
};

// The communication of one group on one rank. Groups of one rank never get here. All members call the same collectives
// in the same order; one thread at a time calls it.
class Backend {
 public:
  virtual ~Backend() = default;

  // Starts `op`. Tensors are contiguous and have the right sizes: Group has checked.
  virtual std::shared_ptr<PendingOp> start(const Op& op) = 0;
  // Starts several sends and receives that may depend on one another in any order.
  virtual std::vector<std::shared_ptr<PendingOp>> start_batch(const std::vector<Op>& ops) = 0;
};

}  // namespace megalith::comm
