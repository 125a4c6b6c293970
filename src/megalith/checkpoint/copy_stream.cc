// Two events order the copies: `begun_` makes them start after the work that produced the state, `done_` makes later
// work (and the writing thread) start after them. The caller's stream never waits in between, so forward and backward
// of the next step overlap with the copies.
#include "megalith/checkpoint/copy_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "megalith/comm/op/current_device.h"

namespace megalith::checkpoint {

void CopyStream::begin() {
  if (!has_streams()) return;
  const c10::impl::VirtualGuardImpl guard(device_.type());
  stream_ = guard.getStreamFromGlobalPool(device_, /*isHighPriority=*/false);
  begun_.emplace(device_.type());
  begun_->record(guard.getStream(device_));  // all work that the copies must come after
}

void CopyStream::enter() {
  if (!stream_) return;
  comm::make_device_current(device_);
  c10::impl::VirtualGuardImpl(device_.type()).exchangeStream(*stream_);
  begun_->block(*stream_);
}

void CopyStream::leave() {
  if (!stream_) return;
  done_.emplace(device_.type());
  done_->record(*stream_);
}

void CopyStream::wait() const {
  if (done_) done_->synchronize();
}

void CopyStream::hold_back() const {
  if (!done_) return;
  const c10::impl::VirtualGuardImpl guard(device_.type());
  done_->block(guard.getStream(device_));
}

}  // namespace megalith::checkpoint
