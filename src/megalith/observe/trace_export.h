// The timelines of all ranks as one file for chrome://tracing and ui.perfetto.dev, on one clock.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "megalith/base/trace.h"
#include "megalith/comm/group.h"

namespace megalith::observe {

// A span as it travels: what TraceSpan holds, with a name of its own.
struct ExportedSpan {
  std::string name;
  TraceLane lane = TraceLane::kCompute;
  int microbatch = -1, chunk = -1;
  int64_t begin_ns = 0, end_ns = 0;
  std::string purpose{}, group{};
  bool operator==(const ExportedSpan&) const = default;
};

struct RankTrace {
  std::string label;            // what the row is called: "rank 3: tp 1, pp 1, dp 0"
  int64_t clock_offset_ns = 0;  // added to its times gives those of rank 0's clock
  size_t dropped = 0;           // spans that did not fit
  std::vector<ExportedSpan> spans;
  bool operator==(const RankTrace&) const = default;
};

// Chrome's trace format: rank r is process r with a thread for each lane, and further ones for spans that overlap
// without one lying in the other, as operations under way at the same time do; complete events ("X") in microseconds
// since the first span of all, in order of their begin. Pipeline actions are called "forward 3.1" (micro-batch.chunk),
// with both numbers as arguments too; communication has purpose and group as arguments.
std::string trace_json(const std::vector<RankTrace>& ranks);

// Bytes and back: how a rank's part reaches rank 0. from_bytes throws CommError for anything but such bytes.
std::string to_bytes(const RankTrace& trace);
RankTrace trace_from_bytes(const std::string& bytes);

// What a rank's clock said when it entered a barrier, and when it had left it.
struct ClockMark {
  int64_t entered_ns = 0, left_ns = 0;
};
using ClockMarks = std::vector<ClockMark>;  // one per barrier
ClockMarks mark_clock(const comm::Group& group, const TraceRecorder& recorder, int rounds);

// How far the clock of `reference` is ahead of that of `own`. Nobody leaves a barrier before everybody has entered it,
// so each barrier bounds the difference from both sides; the middle between the tightest bounds of all is taken. The
// error is at most half of what two ranks together spend in the quickest barrier.
int64_t clock_offset_ns(const ClockMarks& reference, const ClockMarks& own);
// The same for rank 0 and this rank: `rounds` barriers on the host, however many ranks there are. Collective over the
// group.
int64_t clock_offset_ns(const comm::Group& group, const TraceRecorder& recorder, int rounds = 8);

// Takes the recorder's spans of all members and has rank 0 write `file`. Collective over the group.
void write_trace(const comm::Group& group, TraceRecorder& recorder, const std::string& label,
                 const std::filesystem::path& file);

}  // namespace megalith::observe
