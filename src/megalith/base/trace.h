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
// With neither totals nor a timeline switched on, a span costs two relaxed loads at most. Times are the host's: work
// that is only enqueued on a GPU shows up as the time it takes to enqueue it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace megalith {

// The rows of a rank in the timeline: compute, communication, and other work of the host (data, checkpoints).
enum class TraceLane : uint8_t { kCompute, kCommunication, kHost };
inline constexpr int kTraceLanes = 3;
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

// Thread-safe: spans may begin and end on any thread, also while the recorder is switched or emptied. A span is
// recorded if something wanted it when it began and still does when it ends.
class TraceRecorder {
 public:
  // A monotonic clock in nanoseconds, with any origin.
  using Clock = std::function<int64_t()>;
  // Uses std::chrono::steady_clock if no clock is given.
  explicit TraceRecorder(Clock clock = {});
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  // Ends the span on destruction. The recorder must outlive it.
  class [[nodiscard]] Scope {
   public:
    Scope(Scope&& other) noexcept : recorder_(other.recorder_), span_(other.span_) { other.recorder_ = nullptr; }
    Scope& operator=(Scope&&) = delete;
    ~Scope() {
      if (recorder_ != nullptr) recorder_->finish(span_);
    }

   private:
    friend class TraceRecorder;
    Scope(TraceRecorder* recorder, const TraceSpan& span) : recorder_(recorder), span_(span) {}
    TraceRecorder* recorder_;  // nullptr when the span is not recorded
    TraceSpan span_;
  };

  // Begins a span that ends with the returned object.
  Scope span(const TraceLabel& label) {
    if (!wants(label)) return {nullptr, {label}};
    return {this, {label, now_ns(), 0}};
  }
  // Adds a span that was measured elsewhere, on this recorder's clock.
  void add(const TraceSpan& span) {
    if (wants(span.label)) keep(span);
  }

  // The timeline keeps spans between start and stop, up to `most_spans`; further ones are only counted.
  void start_timeline(size_t most_spans = 1'000'000);
  void stop_timeline();
  bool timeline_on() const { return timeline_on_.load(std::memory_order_relaxed); }
  // Returns the spans in the order in which they ended and empties the recorder.
  std::vector<TraceSpan> take_spans();
  // Returns how many spans did not fit since the timeline was started.
  size_t dropped_spans() const;

  // Totals cover spans up to this level; -1, the initial state, switches them off.
  void set_timing_level(int level) { timing_level_.store(level, std::memory_order_relaxed); }
  struct Total {
    std::string name;
    double seconds = 0;
    int64_t count = 0;
  };
  // Returns the totals since the last call, in order of first appearance.
  std::vector<Total> take_totals();

  // Returns the current time on the recorder's clock.
  int64_t now_ns() const;

 private:
  bool is_timed(const TraceLabel& label) const {
    return label.level >= 0 && label.level <= timing_level_.load(std::memory_order_relaxed);
  }
  bool wants(const TraceLabel& label) const { return timeline_on() || is_timed(label); }
  void finish(TraceSpan span);
  void keep(const TraceSpan& span);

  const Clock clock_;
  std::atomic<bool> timeline_on_ = false;
  std::atomic<int> timing_level_ = -1;

  mutable std::mutex mutex_;  // guards what follows
  size_t most_spans_ = 0;
  size_t dropped_ = 0;
  std::vector<TraceSpan> spans_;
  std::vector<Total> totals_;
};

}  // namespace megalith
