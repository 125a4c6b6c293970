// Spans are kept under one mutex: a step has a few hundred of them, so contention does not matter. While nothing is
// recorded, a span costs a few relaxed loads and no lock.
//
// A span of a device is pending until both of its marks have been passed. The pending ones are looked at when somebody
// takes totals or spans, and now and then in between, so that there are never many: marks hold resources of the device.
#include "megalith/base/trace.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace megalith {

const char* name(TraceLane lane) {
  switch (lane) {
    case TraceLane::kCompute:
      return "compute";
    case TraceLane::kCommunication:
      return "communication";
    case TraceLane::kCopies:
      return "copies";
    case TraceLane::kHost:
      return "host";
    case TraceLane::kSide:
      return "side";
  }
  return "";
}

TraceRecorder::TraceRecorder(Clock clock) : clock_(std::move(clock)) {}

int64_t TraceRecorder::now_ns() const {
  if (clock_) return clock_();
  using std::chrono::duration_cast, std::chrono::nanoseconds, std::chrono::steady_clock;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

// `most_spans` bounds the memory; spans beyond it are counted, so that a report can say that it is incomplete.
void TraceRecorder::start_timeline(size_t most_spans) {
  if (device_clock_) device_clock_->align();
  const std::lock_guard lock(mutex_);
  most_spans_ = most_spans;
  dropped_ = 0;
  spans_.clear();
  for (Pending& pending : pending_) pending.shown = false;
  timeline_on_.store(true, std::memory_order_relaxed);
}

void TraceRecorder::stop_timeline() { timeline_on_.store(false, std::memory_order_relaxed); }

std::vector<TraceSpan> TraceRecorder::take_spans() {
  look_at_device(/*wait=*/true);
  const std::lock_guard lock(mutex_);
  return std::exchange(spans_, {});
}

size_t TraceRecorder::dropped_spans() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

std::vector<TraceRecorder::Total> TraceRecorder::take_totals() {
  look_at_device(/*wait=*/false);
  const std::lock_guard lock(mutex_);
  return std::exchange(totals_, {});
}

void TraceRecorder::set_annotate(Annotate annotate) {
  const std::lock_guard lock(mutex_);
  annotates_.store(annotate != nullptr, std::memory_order_relaxed);
  annotate_ = std::move(annotate);
}

// A stream that is being recorded into a graph takes no marks: what its spans would show has not happened. They are
// left out, and the replay is one span.
void TraceRecorder::begin(Scope& scope) {
  const TraceLabel& label = scope.span_.label;
  if (annotates_.load(std::memory_order_relaxed)) {
    const std::lock_guard lock(mutex_);
    if (annotate_) scope.note_ = annotate_(label);
  }
  if (!wants(label)) return;
  if (device_clock_ && label.lane != TraceLane::kHost) {
    scope.begin_ = device_clock_->mark();
    if (!scope.begin_) return;
  } else {
    scope.span_.begin_ns = now_ns();
  }
  scope.recorder_ = this;
}

void TraceRecorder::finish(Scope& scope) {
  if (!scope.begin_) {
    scope.span_.end_ns = now_ns();
    return keep(scope.span_);
  }
  if (std::shared_ptr<DeviceMark> end = device_clock_->mark())
    keep(DeviceSpan{.label = scope.span_.label, .begin = std::move(scope.begin_), .end = std::move(end)});
}

// The switches are read again, since they may have changed while the span was open.
void TraceRecorder::keep(const TraceSpan& span) {
  const std::lock_guard lock(mutex_);
  record(span, timeline_on(), is_timed(span.label));
}

void TraceRecorder::keep(const DeviceSpan& span) {
  constexpr size_t kOftenEnough = 256;
  const bool shown = timeline_on(), timed = is_timed(span.label);
  if (!shown && !timed) return;
  std::unique_lock lock(mutex_);
  pending_.push_back({span, shown, timed});
  const bool many = pending_.size() % kOftenEnough == 0;
  lock.unlock();
  if (many) look_at_device(/*wait=*/false);
}

void TraceRecorder::look_at_device(bool wait) {
  std::unique_lock lock(mutex_);
  std::vector<Pending> pending = std::exchange(pending_, {});
  lock.unlock();
  if (pending.empty()) return;
  std::vector<std::optional<TraceSpan>> known;  // by index of `pending`
  known.reserve(pending.size());
  for (const Pending& one : pending) {
    for (DeviceMark* mark : {one.span.begin.get(), one.span.after.get(), one.span.end.get()})
      if (wait && mark != nullptr) mark->wait();
    const auto end = one.span.end->time_ns();
    const auto begin = end ? one.span.begin->time_ns() : end;
    const auto after = begin && one.span.after ? one.span.after->time_ns() : begin;
    // The clocks of two streams agree to a microsecond only, so an empty span could seem to end before it begins.
    if (after) known.push_back(TraceSpan{one.span.label, std::min(std::max(*begin, *after), *end), *end});
    if (!after) known.push_back(std::nullopt);
  }
  lock.lock();
  std::vector<Pending> unknown;
  for (size_t i = 0; i < pending.size(); ++i) {
    if (known[i])
      record(*known[i], pending[i].shown, pending[i].timed);
    else if (wait)
      dropped_ += pending[i].shown ? 1 : 0;  // the device has failed
    else
      unknown.push_back(std::move(pending[i]));
  }
  pending_.insert(pending_.begin(), std::make_move_iterator(unknown.begin()), std::make_move_iterator(unknown.end()));
}

void TraceRecorder::record(const TraceSpan& span, bool shown, bool timed) {
  if (shown) {
    if (spans_.size() < most_spans_)
      spans_.push_back(span);
    else
      ++dropped_;
  }
  if (!timed) return;
  // A linear search: a run has a few dozen phases at most.
  auto total = std::ranges::find(totals_, span.label.name, &Total::name);
  if (total == totals_.end()) total = totals_.insert(totals_.end(), Total{span.label.name});
  total->seconds += static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
  ++total->count;
}

}  // namespace megalith
