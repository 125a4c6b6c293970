// The seam between Group and what moves the bytes: Gloo, NCCL or threads of one process.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "megalith/comm/op/op.h"

namespace megalith::comm {

// Tells whether something has happened on a device.
class Completion {
 public:
  virtual ~Completion() = default;
  virtual bool done() = 0;  // does not wait for it to happen
};

// One operation in flight. The tensors of its Op stay alive until it has ended, even when the handle is dropped.
class PendingOp : public Completion {
 public:
  // Waits for at most `limit`. True: the operation is done (on CUDA: ordered on the current stream). False: not yet; it
  // may be asked again. Throws CommError when the operation has failed or was aborted.
  virtual bool wait_for(std::chrono::milliseconds limit) = 0;
  // True when it is over, well or badly.
  bool done() override = 0;
  // True where wait_for only makes the current stream wait, so that the operation may still be under way after it.
  virtual bool runs_behind() const { return false; }
  // Only where runs_behind(): handles that keep no tensors alive. The first is done when the device has come to the
  // operation, that is, when all that the rank computed before it is done; the second, which is asked for after
  // wait_for on the same thread and stream, when the operation itself is done.
  virtual std::shared_ptr<Completion> arrival() { return nullptr; }
  virtual std::shared_ptr<Completion> completion() { return nullptr; }
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
  // Frees what the backend holds outside of the process (communicators, device memory) at the end of a run that went
  // well. All members call it, and no operation follows. May block until the others are there.
  virtual void shutdown() {}
};

}  // namespace megalith::comm
