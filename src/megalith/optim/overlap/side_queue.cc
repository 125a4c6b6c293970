// Written against c10's device-independent streams and events, so that the same source serves builds with and without
// CUDA. The stream has the lowest priority, as the default stream has: blocks of its kernels start on multiprocessors
// that products leave free, or between kernels.
#include "megalith/optim/overlap/side_queue.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <deque>
#include <optional>

namespace megalith::optim {

namespace {

class StreamSideQueue final : public SideQueue {
 public:
  StreamSideQueue(c10::Device device, TraceRecorder* trace)
      : device_(device),
        trace_(trace),
        side_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/false)),
        begin_(device.type()) {}

  void begin() override {
    begin_.record(current());
    begin_.block(side_);
    pieces_ = 0;
  }

  void add(std::function<void()> work) override {
    if (ends_.size() == pieces_) ends_.emplace_back(device_.type());
    const c10::StreamGuard on_its_stream(side_);
    {
      std::optional<TraceRecorder::Scope> span;
      if (trace_ != nullptr) span.emplace(trace_->span({.name = "optimizer", .lane = TraceLane::kSide}));
      work();
    }
    ends_[pieces_++].record(side_);
  }

  // Pieces run in order, so that the last one stands for all.
  void wait_for(size_t piece) override { ends_.at(piece).block(current()); }

 private:
  c10::Stream current() const { return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_); }

  const c10::Device device_;
  TraceRecorder* const trace_;
  const c10::Stream side_;
  c10::Event begin_;
  std::deque<c10::Event> ends_;  // by piece; recorded again in every step
  size_t pieces_ = 0;            // since begin()
};

}  // namespace

std::unique_ptr<SideQueue> make_side_queue(c10::Device device, TraceRecorder* trace) {
  if (device.is_cpu()) return nullptr;
  return std::make_unique<StreamSideQueue>(device, trace);
}

}  // namespace megalith::optim
