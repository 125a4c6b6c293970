// The interface between Group and the transports: Gloo, NCCL, or threads of one process.
#pragma once

#include <c10/core/Stream.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/comm/op/op.h"

namespace megalith::comm {

// Reports whether something has happened on a device.
class Completion {
 public:
  virtual ~Completion() = default;
  virtual bool done() = 0;  // never blocks
};

// An operation in flight. The tensors of its Op stay alive until it has ended, even if the handle is dropped.
class PendingOp : public Completion {
 public:
  // Waits for at most `limit`. Returns true if the operation is done (on CUDA: ordered on the current stream), false if
  // not yet; it may then be called again. Throws CommError when the operation has failed or was aborted.
  virtual bool wait_for(std::chrono::milliseconds limit) = 0;
  // Returns true once it has ended, successfully or not.
  bool done() override = 0;
  // Returns true where wait_for only makes the current stream wait, so that the operation may still be in flight after
  // it.
  virtual bool runs_behind() const { return false; }
  // Only where runs_behind(): handles that keep no tensors alive. arrival() is done when the device has reached the
  // operation, that is, when everything the rank computed before it is done. completion(), to be called after wait_for
  // on the same thread and stream, is done when the operation itself is.
  virtual std::shared_ptr<Completion> arrival() { return nullptr; }
  virtual std::shared_ptr<Completion> completion() { return nullptr; }
  // Ends a wait_for() on another thread with a CommError saying `reason`. Called from the watchdog.
  virtual void abort(const std::string& reason) = 0;
  // Returns the group ranks known not to have arrived, if the backend can tell (threads of one process); else empty.
  virtual std::vector<int> missing() { return {}; }
};

// The communication of one group on one rank. Groups of one rank never get here. All members call the same collectives
// in the same order; one thread at a time uses it.
class Backend {
 public:
  virtual ~Backend() = default;

  // Starts `op`. Tensors are contiguous and have the right sizes: Group has checked them.
  virtual std::shared_ptr<PendingOp> start(const Op& op) = 0;
  // Starts several sends and receives, which may depend on one another in any order.
  virtual std::vector<std::shared_ptr<PendingOp>> start_batch(const std::vector<Op>& ops) = 0;
  // Returns the stream on which operations run; std::nullopt where the host does the work, and before the first
  // operation.
  virtual std::optional<c10::Stream> stream() const { return std::nullopt; }
  // Frees resources outside the process (communicators, device memory) at the end of a successful run. All members call
  // it, and no operation follows. May block until the others have arrived.
  virtual void shutdown() {}
};

}  // namespace megalith::comm
