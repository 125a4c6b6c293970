// From spans to a picture. Clocks of different machines may differ by more than a step takes, so each rank measures
// its offset to rank 0 by barriers; then the spans are gathered as CBOR on rank 0, which shifts them to one clock and
// distributes overlapping spans over rows.
#include "megalith/observe/trace_export.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/io/file_io.h"

namespace megalith::observe {
namespace {

using Json = nlohmann::ordered_json;

// "forward-compute 3.1": micro-batch and chunk.
std::string shown_name(const ExportedSpan& span) {
  if (span.microbatch < 0) return span.name;
  return fmt::format("{} {}.{}", span.name, span.microbatch, std::max(span.chunk, 0));
}

// One row of a rank in the picture. Operations have rows by group, since each group has a communicator with a stream.
// Chrome shows spans of one thread only if they nest, so spans that overlap otherwise go to another row.
struct Row {
  TraceLane lane;
  std::string group{};               // empty for spans that are not operations
  int number = 0;                    // among the rows of its lane and group
  std::vector<int64_t> open_ends{};  // ends of the spans around the last one, itself included

  std::string label() const {
    std::string text = name(lane);
    if (!group.empty()) text += " " + group;
    return number == 0 ? text : fmt::format("{} ({})", text, number + 1);
  }
  // Takes the span if it begins after the last one has ended, or lies inside it.
  bool take(const ExportedSpan& span) {
    while (!open_ends.empty() && open_ends.back() <= span.begin_ns) open_ends.pop_back();
    if (!open_ends.empty() && span.end_ns > open_ends.back()) return false;
    open_ends.push_back(span.end_ns);
    return true;
  }
};

// The rows of one rank: one for each lane (for copies if there are any), and further ones as spans need them. Spans
// must come ordered by begin, outer ones first.
class Rows {
 public:
  Rows() {
    for (const TraceLane lane : {TraceLane::kCompute, TraceLane::kCommunication, TraceLane::kHost})
      rows_.push_back({lane});
  }
  // Returns the thread, which is the index, of the first row of its lane and group with room, or of a new one.
  int thread_for(const ExportedSpan& span) {
    const std::string group = span.lane == TraceLane::kCommunication ? span.group : "";
    int number = 0;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].lane != span.lane || rows_[i].group != group) continue;
      if (rows_[i].take(span)) return static_cast<int>(i);
      ++number;
    }
    rows_.push_back({span.lane, group, number});
    rows_.back().take(span);
    return static_cast<int>(rows_.size()) - 1;
  }
  const std::vector<Row>& all() const { return rows_; }

 private:
  std::vector<Row> rows_;
};

// "M" events name processes and threads.
Json metadata(const char* kind, size_t rank, int thread, Json args) {
  return {{"name", kind}, {"ph", "M"}, {"pid", rank}, {"tid", thread}, {"args", std::move(args)}};
}

// Adds the names of the rank's rows, and their order on the screen: ranks by number, in each the lanes in order.
void add_names(Json& events, const RankTrace& trace, size_t rank, const Rows& rows) {
  std::string label = trace.label.empty() ? fmt::format("rank {}", rank) : trace.label;
  if (trace.dropped > 0) label += fmt::format(" ({} spans left out)", trace.dropped);
  events.push_back(metadata("process_name", rank, 0, {{"name", std::move(label)}}));
  events.push_back(metadata("process_sort_index", rank, 0, {{"sort_index", rank}}));
  constexpr int kMostRows = 1000;  // more rows than a lane ever has, so that lanes stay together when sorted
  int thread = 0;
  for (const Row& row : rows.all()) {
    const int sort_index = static_cast<int>(row.lane) * kMostRows + thread;
    events.push_back(metadata("thread_name", rank, thread, {{"name", row.label()}}));
    events.push_back(metadata("thread_sort_index", rank, thread, {{"sort_index", sort_index}}));
    ++thread;
  }
}

// Returns the begin of the first span of all ranks on rank 0's clock, which becomes time 0 of the picture.
int64_t first_begin(const std::vector<RankTrace>& ranks) {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const RankTrace& trace : ranks)
    for (const ExportedSpan& span : trace.spans) first = std::min(first, span.begin_ns + trace.clock_offset_ns);
  return first;
}

// A complete event. `begin_ns` is already on the common clock; Chrome wants microseconds.
Json event(const ExportedSpan& span, size_t rank, int thread, int64_t begin_ns) {
  constexpr double kMicro = 1e-3;
  Json json{{"name", shown_name(span)},
            {"ph", "X"},
            {"pid", rank},
            {"tid", thread},
            {"ts", static_cast<double>(begin_ns) * kMicro},
            {"dur", static_cast<double>(span.end_ns - span.begin_ns) * kMicro}};
  if (span.microbatch >= 0) json["args"] = {{"microbatch", span.microbatch}, {"chunk", std::max(span.chunk, 0)}};
  if (!span.purpose.empty()) json["args"]["purpose"] = span.purpose;
  if (!span.group.empty()) json["args"]["group"] = span.group;
  return json;
}

// Empties the recorder. Labels of spans are pointers to literals, which mean nothing on another rank: copied here.
RankTrace take(TraceRecorder& recorder, std::string label, int64_t offset_ns) {
  RankTrace trace{std::move(label), offset_ns, recorder.dropped_spans(), {}};
  for (const TraceSpan& span : recorder.take_spans())
    trace.spans.push_back({span.label.name, span.label.lane, span.label.microbatch, span.label.chunk, span.begin_ns,
                           span.end_ns, span.label.purpose, span.label.group});
  return trace;
}

}  // namespace

std::string trace_json(const std::vector<RankTrace>& ranks) {
  const int64_t origin = first_begin(ranks);
  Json events = Json::array();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankTrace& trace = ranks[rank];
    std::vector<ExportedSpan> spans = trace.spans;
    // Outer spans come before those that begin at the same time.
    std::ranges::stable_sort(spans, {},
                             [](const ExportedSpan& span) { return std::pair(span.begin_ns, -span.end_ns); });
    Rows rows;
    for (const ExportedSpan& span : spans)
      events.push_back(event(span, rank, rows.thread_for(span), span.begin_ns + trace.clock_offset_ns - origin));
    add_names(events, trace, rank, rows);
  }
  const Json document{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  return document.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// CBOR: compact, and nlohmann::json reads and writes it.
std::string to_bytes(const RankTrace& trace) {
  Json spans = Json::array();
  for (const ExportedSpan& span : trace.spans)
    spans.push_back({span.name, static_cast<int>(span.lane), span.microbatch, span.chunk, span.begin_ns, span.end_ns,
                     span.purpose, span.group});
  std::string bytes;
  Json::to_cbor(Json{trace.label, trace.clock_offset_ns, trace.dropped, std::move(spans)}, bytes);
  return bytes;
}

RankTrace trace_from_bytes(const std::string& bytes) try {
  const Json json = Json::from_cbor(bytes);
  RankTrace trace{json.at(0), json.at(1), json.at(2), {}};
  for (const Json& span : json.at(3))
    trace.spans.push_back({span.at(0), static_cast<TraceLane>(span.at(1).get<int>()), span.at(2), span.at(3),
                           span.at(4), span.at(5), span.at(6), span.at(7)});
  return trace;
} catch (const Json::exception& error) {
  throw CommError(fmt::format("a rank's timeline arrived damaged: {}", error.what()));
}

ClockMarks mark_clock(const comm::Group& group, const TraceRecorder& recorder, int rounds) {
  ClockMarks marks;
  for (int round = 0; round < rounds; ++round) {
    const int64_t entered = recorder.now_ns();
    group.barrier("clock offset");
    marks.push_back({entered, recorder.now_ns()});
  }
  return marks;
}

// Let o be the offset. In each round the reference enters at or before the own leave time + o, and leaves at or after
// the own enter time + o.
int64_t clock_offset_ns(const ClockMarks& reference, const ClockMarks& own) {
  check(reference.size() == own.size() && !own.empty(), "{} and {} marks of two clocks", reference.size(), own.size());
  int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
  for (size_t round = 0; round < own.size(); ++round) {
    // Rank `reference` had entered before `own` left, and left after `own` had entered.
    least = std::max(least, reference[round].entered_ns - own[round].left_ns);
    most = std::min(most, reference[round].left_ns - own[round].entered_ns);
  }
  return least + (most - least) / 2;
}

int64_t clock_offset_ns(const comm::Group& group, const TraceRecorder& recorder, int rounds) {
  if (group.size() == 1) return 0;
  const ClockMarks own = mark_clock(group, recorder, rounds);
  // Raw bytes: all ranks run the same program on machines of the same byte order.
  const std::string bytes(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(ClockMark));
  const std::string sent = group.broadcast_bytes(bytes, /*root=*/0, "clock offset: marks of rank 0");
  check<CommError>(sent.size() == bytes.size(), "{} bytes of clock marks arrived from rank 0, and {} were expected",
                   sent.size(), bytes.size());
  ClockMarks reference(own.size());
  std::memcpy(reference.data(), sent.data(), sent.size());
  return clock_offset_ns(reference, own);
}

// The clock offset is measured right after the recorded steps, so that the clocks have hardly drifted since.
void write_trace(const comm::Group& group, TraceRecorder& recorder, const std::string& label,
                 const std::filesystem::path& file) {
  const int64_t offset = clock_offset_ns(group, recorder);
  const std::string own_bytes = to_bytes(take(recorder, label, offset));
  const std::vector<std::string> all = group.gather_bytes(own_bytes, /*root=*/0, "timelines of all ranks");
  if (group.rank() != 0) return;
  std::vector<RankTrace> ranks;
  for (const std::string& bytes : all) ranks.push_back(trace_from_bytes(bytes));
  io::make_folders(std::filesystem::absolute(file).parent_path());
  io::replace_text_file(file, trace_json(ranks));
}

}  // namespace megalith::observe
