// Exports the timelines of all ranks, on one clock, as one file for chrome://tracing and ui.perfetto.dev.
//
// The clocks of machines differ, so ranks first measure their offsets:
//
//   rank 0   entered |---- barrier ----| left
//   rank r      entered |-- barrier --| left              nobody leaves before all have entered
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "megalith/base/trace.h"
#include "megalith/comm/group.h"

namespace megalith::observe {

// A span as it is sent between ranks: the contents of a TraceSpan, owning its strings. Times are nanoseconds of the
// clock of the rank that recorded it.
struct ExportedSpan {
  std::string name;
  TraceLane lane = TraceLane::kCompute;
  int microbatch = -1, chunk = -1;
  int64_t begin_ns = 0, end_ns = 0;
  std::string purpose{}, group{};
  bool operator==(const ExportedSpan&) const = default;
};

// The timeline of one rank.
struct RankTrace {
  std::string label;            // name of its row: "rank 3: tp 1, pp 1, dp 0"
  int64_t clock_offset_ns = 0;  // add it to this rank's times to get times of rank 0's clock
  size_t dropped = 0;           // spans that did not fit into the recorder
  std::vector<ExportedSpan> spans;
  bool operator==(const RankTrace&) const = default;
};

// Returns Chrome's trace format. Rank r is process r, with one thread per lane, one for the operations of each group
// ("communication tp"), and further ones for spans that overlap without nesting. Spans are complete events ("X") in
// microseconds since the first span of all, ordered by begin. Pipeline actions are called "forward 3.1"
// (micro-batch.chunk), with both numbers as arguments, too; communication has purpose and group as arguments. Index r
// of `ranks` is rank r. Spans need not be sorted.
std::string trace_json(const std::vector<RankTrace>& ranks);

// Convert to bytes and back, to send a rank's timeline to rank 0. trace_from_bytes throws CommError for any other
// bytes.
std::string to_bytes(const RankTrace& trace);
RankTrace trace_from_bytes(const std::string& bytes);

// A rank's clock when it entered a barrier and after it had left it.
struct ClockMark {
  int64_t entered_ns = 0, left_ns = 0;
};
using ClockMarks = std::vector<ClockMark>;  // one per barrier
// Runs `rounds` barriers and returns this rank's marks. Collective over the group.
ClockMarks mark_clock(const comm::Group& group, const TraceRecorder& recorder, int rounds);

// Returns how far the clock of `reference` is ahead of that of `own`. Nobody leaves a barrier before everybody has
// entered it, so each barrier bounds the difference from both sides; the result is the middle between the tightest
// bounds. The error is at most half of the time that the two ranks together spend in the quickest barrier.
int64_t clock_offset_ns(const ClockMarks& reference, const ClockMarks& own);
// Does the same for rank 0 and this rank with `rounds` barriers on the host, regardless of the number of ranks.
// Collective over the group.
int64_t clock_offset_ns(const comm::Group& group, const TraceRecorder& recorder, int rounds = 8);

// Collects the spans of all members; rank 0 writes them to `file`. Collective over the group.
void write_trace(const comm::Group& group, TraceRecorder& recorder, const std::string& label,
                 const std::filesystem::path& file);

}  // namespace megalith::observe
