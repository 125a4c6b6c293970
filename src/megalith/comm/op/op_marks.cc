// A mark goes to the current stream of the thread, so that of a communicator is made current for a moment, through
// c10's table of device functions.
#include "megalith/comm/op/op_marks.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace megalith::comm {

namespace {

std::shared_ptr<DeviceMark> mark_on(const c10::Stream& stream, DeviceClock& clock) {
  const c10::impl::VirtualGuardImpl guard(stream.device_type());
  const c10::Stream before = guard.exchangeStream(stream);
  std::shared_ptr<DeviceMark> mark = clock.mark();
  guard.exchangeStream(before);
  return mark;
}

}  // namespace

void OpMarks::set_trace(TraceRecorder* trace) {
  trace_ = trace;
  const std::lock_guard lock(mutex_);
  newest_end_.clear();
  waits_.clear();
}

std::shared_ptr<DeviceMark> OpMarks::issue() {
  TraceRecorder* const trace = trace_;
  if (trace == nullptr || trace->device_clock() == nullptr || !trace->timeline_on()) return nullptr;
  return trace->device_clock()->mark();
}

void OpMarks::started(const std::vector<Op>& ops, const char* group, std::shared_ptr<DeviceMark> issued,
                      const std::optional<c10::Stream>& stream) {
  TraceRecorder* const trace = trace_;
  if (trace == nullptr || !issued || !stream) return;
  const std::shared_ptr<DeviceMark> end = mark_on(*stream, *trace->device_clock());
  if (!end) return;
  std::unique_lock lock(mutex_);
  const std::shared_ptr<DeviceMark> previous = std::exchange(newest_end_[stream->id()], end);
  lock.unlock();
  for (const Op& op : ops)
    trace->add(DeviceSpan{
        .label = {.name = to_string(op.kind), .lane = TraceLane::kCommunication, .purpose = op.label, .group = group},
        .begin = issued,
        .end = end,
        .after = previous});
}

std::shared_ptr<DeviceMark> OpMarks::before_wait() {
  TraceRecorder* const trace = trace_;
  return trace == nullptr || trace->device_clock() == nullptr ? nullptr : trace->device_clock()->mark();
}

void OpMarks::waited(const OpInfo& op, const char* group, std::shared_ptr<DeviceMark> before) {
  constexpr size_t kOftenEnough = 256;  // marks hold resources of the device
  TraceRecorder* const trace = trace_;
  if (trace == nullptr || !before) return;
  const std::shared_ptr<DeviceMark> after = trace->device_clock()->mark();
  if (!after) return;
  trace->add(DeviceSpan{.label = {.name = "communication-wait", .level = 1, .purpose = op.label, .group = group},
                        .begin = before,
                        .end = after});
  const std::lock_guard lock(mutex_);
  waits_.push_back({std::move(before), after});
  if (waits_.size() % kOftenEnough == 0) add_known_waits();
}

double OpMarks::waited_seconds() {
  const std::lock_guard lock(mutex_);
  add_known_waits();
  return static_cast<double>(waited_ns_) / 1e9;
}

void OpMarks::add_known_waits() {
  std::erase_if(waits_, [this](const Wait& wait) {
    const auto after = wait.after->time_ns(), before = after ? wait.before->time_ns() : after;
    if (!before) return false;
    waited_ns_ += std::max<int64_t>(0, *after - *before);
    return true;
  });
}

}  // namespace megalith::comm
