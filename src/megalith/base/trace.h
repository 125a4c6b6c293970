// Named spans of time on a rank, for totals per phase and for a timeline.
//
//   TraceRecorder trace;                                 // one per rank, passed to the code that has phases
//   trace.set_timing_level(1);                           // totals of spans of level 0 and 1
//   {
//     const auto span = trace.span({.name = "forward-backward", .level = 1});  // until the end of the block
//     const auto part = trace.span({.name = "forward", .microbatch = 3, .chunk = 1});
//   }
//   trace.take_totals();
//
// With neither totals nor a timeline switched on, a span costs three relaxed loads at most.
//
// Spans are measured by the clock of the device that does the work. On a GPU (set_device_clock) the host only enqueues:
// a span places two marks in the queue, and becomes known when the device has passed the second one. Nobody waits for
// that. Totals leave such spans to the next call; the timeline, which is written once, waits at its end. Spans of the
// host's own work (lane kHost), and all spans without a device clock, are times of the host.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megalith/base/device_clock.h"

namespace megalith {

// The rows of a rank in the timeline: compute, communication, copies between host and device, other work of the host
// (data, checkpoints), and computation on a second stream beside the first.
enum class TraceLane : uint8_t { kCompute, kCommunication, kCopies, kHost, kSide };
const char* name(TraceLane lane);

// Describes a span.
struct TraceLabel {
  const char* name;  // name of the phase; a literal, since only the pointer is stored
  TraceLane lane = TraceLane::kCompute;
  // 0: always in the totals; 1, 2: finer phases (timing_log_level); -1: in the timeline only.
  int level = -1;
  int microbatch = -1;  // micro-batch of a pipeline action; -1 for other phases
  int chunk = -1;
  // For communication: its purpose and its group. Literals, or texts that outlive take_spans().
  const char* purpose = "";
  const char* group = "";
};

// A finished span, on the recorder's clock.
struct TraceSpan {
  TraceLabel label;
  int64_t begin_ns = 0, end_ns = 0;
};

// A span between marks on a device. It begins at the later one of `begin` and `after`, which may be nullptr: work on a
// stream begins when what it needs is ready and the stream is free.
struct DeviceSpan {
  TraceLabel label;
  std::shared_ptr<DeviceMark> begin, end, after{};
};

// Thread-safe: spans may begin and end on any thread, also while the recorder is switched or emptied. A span is
// recorded if something wanted it when it began and still does when it ends. No lock is held while a device is asked,
// which may block if it is stuck: the watchdog records spans as well.
class TraceRecorder {
 public:
  // A monotonic clock in nanoseconds, with any origin.
  using Clock = std::function<int64_t()>;
  // Uses std::chrono::steady_clock if no clock is given.
  explicit TraceRecorder(Clock clock = {});
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  // Measures spans of all lanes but kHost on a device from now on, in the current stream of their thread. Call it
  // before the first span. The times of `clock` must be those of the recorder's clock. nullptr, the initial state: the
  // host does all work.
  void set_device_clock(std::shared_ptr<DeviceClock> clock) { device_clock_ = std::move(clock); }
  DeviceClock* device_clock() const { return device_clock_.get(); }

  // Ends the span on destruction. The recorder must outlive it.
  class [[nodiscard]] Scope {
   public:
    Scope(Scope&& other) noexcept
        : recorder_(std::exchange(other.recorder_, nullptr)),
          span_(other.span_),
          begin_(std::move(other.begin_)),
          note_(std::move(other.note_)) {}
    Scope& operator=(Scope&&) = delete;
    ~Scope() {
      if (recorder_ != nullptr) recorder_->finish(*this);
    }

   private:
    friend class TraceRecorder;
    explicit Scope(const TraceLabel& label) : span_{label} {}
    TraceRecorder* recorder_ = nullptr;  // nullptr when the span is not recorded
    TraceSpan span_;
    std::shared_ptr<DeviceMark> begin_;  // nullptr for a span of the host
    std::shared_ptr<void> note_;         // see set_annotate
  };

  // Begins a span that ends with the returned object.
  Scope span(const TraceLabel& label) {
    Scope scope(label);
    if (wants(label) || annotates_.load(std::memory_order_relaxed)) begin(scope);
    return scope;
  }
  // Adds a span that was measured elsewhere: on this recorder's clock, or by marks of the device clock.
  void add(const TraceSpan& span) {
    if (wants(span.label)) keep(span);
  }
  void add(const DeviceSpan& span) {
    if (wants(span.label)) keep(span);
  }

  // The timeline keeps spans between start and stop, up to `most_spans`; further ones are only counted.
  void start_timeline(size_t most_spans = 1'000'000);
  void stop_timeline();
  bool timeline_on() const { return timeline_on_.load(std::memory_order_relaxed); }
  // Returns the spans and empties the recorder: in the order in which they ended, those of a device in the order in
  // which they became known. Waits for the device if it has not finished them yet.
  std::vector<TraceSpan> take_spans();
  // Returns how many spans did not fit, or were lost with a failed device, since the timeline was started.
  size_t dropped_spans() const;

  // Totals cover spans up to this level; -1, the initial state, switches them off.
  void set_timing_level(int level) { timing_level_.store(level, std::memory_order_relaxed); }
  struct Total {
    std::string name;
    double seconds = 0;
    int64_t count = 0;
  };
  // Returns the totals since the last call, in order of first appearance. Does not wait: spans that the device has not
  // finished yet are part of a later call.
  std::vector<Total> take_totals();

  // Has the names of spans written elsewhere, such as into a profiler's timeline: `annotate` is called at the begin of
  // every span, on its thread, and what it returns is destroyed at the end. Empty, the initial state, switches it off.
  using Annotate = std::function<std::shared_ptr<void>(const TraceLabel&)>;
  void set_annotate(Annotate annotate);

  // Returns the current time on the recorder's clock.
  int64_t now_ns() const;

 private:
  // A span of a device that is not known yet, and what it is for.
  struct Pending {
    DeviceSpan span;
    bool shown = false, timed = false;
  };

  bool is_timed(const TraceLabel& label) const {
    return label.level >= 0 && label.level <= timing_level_.load(std::memory_order_relaxed);
  }
  bool wants(const TraceLabel& label) const { return timeline_on() || is_timed(label); }
  void begin(Scope& scope);
  void finish(Scope& scope);
  void keep(const TraceSpan& span);
  void keep(const DeviceSpan& span);
  // Records the pending spans whose marks have been passed; with `wait`, all of them.
  void look_at_device(bool wait);
  void record(const TraceSpan& span, bool shown, bool timed);  // requires mutex_

  const Clock clock_;
  std::shared_ptr<DeviceClock> device_clock_;
  std::atomic<bool> timeline_on_ = false;
  std::atomic<bool> annotates_ = false;
  std::atomic<int> timing_level_ = -1;

  mutable std::mutex mutex_;  // guards what follows
  Annotate annotate_;
  size_t most_spans_ = 0;
  size_t dropped_ = 0;
  std::vector<Pending> pending_;  // in the order in which the host ended them
  std::vector<TraceSpan> spans_;
  std::vector<Total> totals_;
};

}  // namespace megalith
