// What a rank spends its time on: spans with names, for totals per phase and for a timeline.
//
//   TraceRecorder trace;                                                  // one a rank, passed to whoever has a phase
//   trace.set_timing_level(1);                                            // totals of spans of level 0 and 1
//   {
//     const auto span = trace.span({.name = "forward-backward", .level = 1});     // until the end of the block
//     const auto part = trace.span({.name = "forward", .microbatch = 3, .chunk = 1});
//   }
//   trace.take_totals();
//
// With neither totals nor a timeline switched on, a span costs one relaxed load. Times are the host's: work that is
// only enqueued on a GPU shows as the time that enqueueing takes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace megalith {

// Rows of a rank in the timeline.
enum class TraceLane : uint8_t { kCompute, kCommunication, kHost };
inline constexpr int kTraceLanes = 3;
const char* name(TraceLane lane);

struct TraceLabel {
  const char* name;  // of the phase; a literal: it is kept as a pointer
  TraceLane lane = TraceLane::kCompute;
  // 0: always part of the totals; 1, 2: finer (timing_log_level); -1: part of the timeline only.
  int level = -1;
  int microbatch = -1;  // of a pipeline action
  int chunk = -1;
  // Of communication: what for, and among whom. Literals, or texts that live until the spans are taken.
  const char* purpose = "";
  const char* group = "";
};

struct TraceSpan {
  TraceLabel label;
  int64_t begin_ns = 0, end_ns = 0;
};

// Thread-safe: spans may begin and end on any thread. Switching and taking while spans are open is fine; a span counts
// for what is switched on when it ends and was when it began.
class TraceRecorder {
 public:
  // Nanoseconds of a clock that does not jump, from any origin.
  using Clock = std::function<int64_t()>;
  // Without a clock: std::chrono::steady_clock.
  explicit TraceRecorder(Clock clock = {});
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  // Ends the span when it goes. Outlived by the recorder.
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
    TraceRecorder* recorder_;  // nullptr: nobody looks
    TraceSpan span_;
  };

  Scope span(const TraceLabel& label) {
    if (!wants(label)) return {nullptr, {label}};
    return {this, {label, now_ns(), 0}};
  }
  // A span measured elsewhere, on this recorder's clock.
  void add(const TraceSpan& span) {
    if (wants(span.label)) keep(span);
  }

  // The timeline: spans between start and stop are kept, up to `most_spans` (further ones are counted and left out).
  void start_timeline(size_t most_spans = 1'000'000);
  void stop_timeline();
  bool timeline_on() const { return timeline_on_.load(std::memory_order_relaxed); }
  // In order of their ends; the recorder is then empty.
  std::vector<TraceSpan> take_spans();
  size_t dropped_spans() const;

  // Totals of spans up to this level; -1, the state at the start: none.
  void set_timing_level(int level) { timing_level_.store(level, std::memory_order_relaxed); }
  struct Total {
    std::string name;
    double seconds = 0;
    int64_t count = 0;
  };
  // Since they were last taken, in order of first appearance.
  std::vector<Total> take_totals();

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
