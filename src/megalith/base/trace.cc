// Spans are kept under one mutex: a step has a few hundred of them, so contention does not matter. While nothing is
// recorded, a span costs two relaxed loads and no lock.
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
    case TraceLane::kHost:
      return "host";
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
  const std::lock_guard lock(mutex_);
  most_spans_ = most_spans;
  dropped_ = 0;
  spans_.clear();
  timeline_on_.store(true, std::memory_order_relaxed);
}

void TraceRecorder::stop_timeline() { timeline_on_.store(false, std::memory_order_relaxed); }

std::vector<TraceSpan> TraceRecorder::take_spans() {
  const std::lock_guard lock(mutex_);
  return std::exchange(spans_, {});
}

size_t TraceRecorder::dropped_spans() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

std::vector<TraceRecorder::Total> TraceRecorder::take_totals() {
  const std::lock_guard lock(mutex_);
  return std::exchange(totals_, {});
}

void TraceRecorder::finish(TraceSpan span) {
  span.end_ns = now_ns();
  keep(span);
}

// The switches are read again, since they may have changed while the span was open.
void TraceRecorder::keep(const TraceSpan& span) {
  const std::lock_guard lock(mutex_);
  if (timeline_on()) {
    if (spans_.size() < most_spans_)
      spans_.push_back(span);
    else
      ++dropped_;
  }
  if (!is_timed(span.label)) return;
  // A linear search: a run has a few dozen phases at most.
  auto total = std::ranges::find(totals_, span.label.name, &Total::name);
  if (total == totals_.end()) total = totals_.insert(totals_.end(), Total{span.label.name});
  total->seconds += static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
  ++total->count;
}

}  // namespace megalith
