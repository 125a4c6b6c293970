// Reads a timeline of up to half a gigabyte: nlohmann's parser calls back for each event, which is stored in a few
// dozen bytes and dropped, so the document never exists as a tree. Then steps are found by the `forward-backward`
// spans, and the pipeline bubble of each step is measured as the time without a pipeline action.
#include "megalith/observe/dashboard/trace_view.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "megalith/base/error.h"
#include "megalith/base/json_words.h"

namespace megalith::observe {

using Json = nlohmann::ordered_json;

// Takes events as they are parsed, so that a large file never becomes a tree in memory.
class TraceParser {
 public:
  explicit TraceParser(TraceView& view) : view_(view) { name_index(""); }

  // The callback of nlohmann::json::parse: takes each element of traceEvents, and drops it. Depth 1 is the document's
  // members, depth 2 the elements of the list. Returning false removes the element.
  bool operator()(int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    if (depth != 2 || event != nlohmann::json::parse_event_t::object_end) return true;
    take(value);
    return false;
  }
  // Marks communication and sorts. Threads are named only after their spans, so this is known only at the end.
  void finish() {
    for (size_t rank = 0; rank < view_.ranks_.size(); ++rank) {
      auto& spans = view_.ranks_[rank].spans;
      for (size_t i = 0; i < spans.size(); ++i)
        spans[i].communication = communication_.contains({rank, threads_[rank][i]});
      std::ranges::stable_sort(spans, {}, &TraceView::Span::begin);
      if (view_.ranks_[rank].label.empty()) view_.ranks_[rank].label = fmt::format("rank {}", rank);
    }
  }

 private:
  // number() and text() return 0 and "" for a member that is missing or of another type: a file by another program may
  // have fewer details, and is shown with those that it has.
  static double number(const nlohmann::json& from, const char* key) {
    const auto found = from.find(key);
    return found != from.end() && found->is_number() ? found->get<double>() : 0;
  }
  static std::string text(const nlohmann::json& from, const char* key) {
    constexpr size_t kMostBytes = 200;  // longer names are cut: they are shown, not looked up
    const auto found = from.find(key);
    return found != from.end() && found->is_string() ? found->get<std::string>().substr(0, kMostBytes) : "";
  }
  // Returns the number of a name in the table, which grows on first sight; "" is always number 0.
  uint32_t name_index(const std::string& name) {
    const auto [entry, added] = index_.emplace(name, static_cast<uint32_t>(view_.names_.size()));
    if (added) view_.names_.push_back(name);
    return entry->second;
  }

  // Chrome's format: the process id is the rank, "M" events name processes and threads, "X" events are spans with a
  // begin and a duration. Other kinds (counters, flows) are ignored.
  void take(const nlohmann::json& event) {
    const double pid = number(event, "pid");
    if (!(pid >= 0 && pid < TraceView::kMostRanks)) return void(++view_.left_out_);
    const auto rank = static_cast<size_t>(pid);
    if (view_.ranks_.size() <= rank) {
      view_.ranks_.resize(rank + 1);
      threads_.resize(rank + 1);
    }
    const auto args = event.find("args");
    const nlohmann::json none = nlohmann::json::object();
    const nlohmann::json& details = args != event.end() && args->is_object() ? *args : none;
    const std::string kind = text(event, "ph"), name = text(event, "name");
    const double thread = number(event, "tid");
    if (kind == "M" && name == "process_name") view_.ranks_[rank].label = text(details, "name");
    // Copies run beside the computation as well, and so does a second stream.
    const std::string row = kind == "M" && name == "thread_name" ? text(details, "name") : "";
    for (const char* beside : {"communication", "copies", "side"})
      if (row.starts_with(beside)) communication_.emplace(rank, thread);
    if (kind == "X") add_span(event, details, rank, thread, name);
  }
  // A span with a micro-batch is a pipeline action; its name ends with "micro-batch.chunk", which is cut off so that
  // equal actions share a name, and a color.
  void add_span(const nlohmann::json& event, const nlohmann::json& details, size_t rank, double thread,
                std::string name) {
    const double begin = number(event, "ts"), duration = number(event, "dur");
    const bool sane = std::isfinite(begin) && std::isfinite(duration) && duration >= 0;
    if (!sane || view_.spans_ == TraceView::kMostSpans) return void(++view_.left_out_);
    ++view_.spans_;
    TraceView::Span span{.begin = begin, .duration = duration};
    if (details.contains("microbatch")) {
      constexpr double kMost = 1e6;
      span.microbatch = static_cast<int>(std::clamp(number(details, "microbatch"), 0.0, kMost));
      span.chunk = static_cast<int>(std::clamp(number(details, "chunk"), 0.0, kMost));
      name = name.substr(0, name.rfind(' '));  // "forward-compute 3.1"
    }
    const std::string purpose = text(details, "purpose"), group = text(details, "group");
    span.name = name_index(name);
    span.purpose = name_index(group.empty() ? purpose : fmt::format("{} ({})", purpose, group));
    view_.ranks_[rank].spans.push_back(span);
    threads_[rank].push_back(thread);
  }

  TraceView& view_;
  std::unordered_map<std::string, uint32_t> index_;
  std::vector<std::vector<double>> threads_;           // by rank: the thread of each span
  std::set<std::pair<size_t, double>> communication_;  // rank and thread of communication
};

namespace {

// Returns the microseconds of [begin, end] covered by pipeline actions. Spans are ordered by begin; overlapping ones
// count once.
double covered(const std::vector<TraceView::Span>& spans, double begin, double end) {
  double sum = 0, reached = begin;
  for (const TraceView::Span& span : spans) {
    if (span.microbatch < 0 || span.end() <= reached) continue;
    if (span.begin >= end) break;
    sum += std::min(span.end(), end) - std::max(span.begin, reached);
    reached = std::min(span.end(), end);
  }
  return sum;
}

// Fewer digits make the page's data smaller.
double rounded(double microseconds) { return std::round(microseconds * 10) / 10; }
double share(double value) { return std::round(value * 1e5) / 1e5; }

}  // namespace

TraceView TraceView::parse(std::string_view json) try {
  TraceView view;
  TraceParser parser(view);
  const auto document = nlohmann::json::parse(json, std::ref(parser));
  check<DataError>(document.is_object() && document.contains("traceEvents"),
                   "trace.json has no \"traceEvents\"; it is not a timeline that Megalith wrote");
  parser.finish();
  view.find_steps();
  return view;
} catch (const nlohmann::json::exception& error) {
  throw DataError(fmt::format("trace.json cannot be read: {}", without_exception_name(error.what())));
}

void TraceView::find_steps() {
  // Ranks run the same number of steps, so the n-th forward-backward of each rank belongs to step n.
  const auto marker = std::ranges::find(names_, "forward-backward");
  if (marker == names_.end()) return;
  const auto wanted = static_cast<uint32_t>(marker - names_.begin());
  for (const Rank& rank : ranks_) {
    size_t number = 0;
    for (const Span& span : rank.spans) {
      if (span.name != wanted) continue;
      if (steps_.size() == number) steps_.push_back({.work_begin = span.begin, .work_end = span.end()});
      Step& step = steps_[number++];
      step.work_begin = std::min(step.work_begin, span.begin);
      step.work_end = std::max(step.work_end, span.end());
    }
  }
  // A step lasts until the next one begins; the first starts at 0, the last ends with the last span.
  double last = 0;
  for (const Rank& rank : ranks_)
    for (const Span& span : rank.spans) last = std::max(last, span.end());
  for (size_t i = 0; i < steps_.size(); ++i) {
    steps_[i].begin = i == 0 ? 0 : steps_[i].work_begin;
    steps_[i].end = i + 1 < steps_.size() ? steps_[i + 1].work_begin : last;
    measure(steps_[i]);
  }
}

// bubble = 1 - (sum over ranks of busy time) / (ranks * length of forward and backward).
void TraceView::measure(Step& step) const {
  const double length = std::max(step.work_end - step.work_begin, 1e-9);
  double busy = 0;
  for (const Rank& rank : ranks_) {
    step.busy.push_back(covered(rank.spans, step.work_begin, step.work_end) / length);
    busy += step.busy.back();
  }
  step.bubble = ranks_.empty() ? 0 : 1 - busy / static_cast<double>(ranks_.size());
}

std::string TraceView::summary_json() const {
  Json bubbles = Json::array();
  for (const Step& step : steps_) bubbles.push_back(share(step.bubble));
  return Json{{"steps", steps_.size()},
              {"ranks", ranks_.size()},
              {"spans", spans_},
              {"left_out", left_out_},
              {"bubbles", std::move(bubbles)}}
      .dump();
}

std::string TraceView::step_json(size_t number) const {
  const Step& step = steps_.at(number);
  const auto in_step = [&step](const Span& span) { return span.begin < step.end && span.end() > step.begin; };
  std::vector<double> lengths;
  for (const Rank& rank : ranks_)
    for (const Span& span : rank.spans)
      if (in_step(span)) lengths.push_back(span.duration);
  // A step of thousands of ranks may have more spans than a page can draw; then the longest kMostShown are sent.
  double least = 0;  // shortest duration that is shown
  const size_t count = lengths.size();
  if (count > kMostShown) {
    // O(n) selection instead of sorting: only the threshold is needed. Spans as long as the threshold are all shown.
    const auto cut = lengths.begin() + static_cast<std::ptrdiff_t>(count - kMostShown);
    std::ranges::nth_element(lengths, cut);
    least = *cut;
  }
  Json ranks = Json::array();
  size_t shown = 0;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Json spans = Json::array();
    for (const Span& span : ranks_[r].spans)
      if (in_step(span) && span.duration >= least)
        spans.push_back({rounded(span.begin - step.begin), rounded(span.duration), span.name, span.microbatch,
                         span.chunk, span.communication ? 1 : 0, span.purpose});
    shown += spans.size();
    ranks.push_back({{"label", ranks_[r].label}, {"busy", share(step.busy[r])}, {"spans", std::move(spans)}});
  }
  const Json document{{"step", number},
                      {"of", steps_.size()},
                      {"bubble", share(step.bubble)},
                      {"microseconds", rounded(step.end - step.begin)},
                      {"work", {rounded(step.work_begin - step.begin), rounded(step.work_end - step.begin)}},
                      {"left_out", count - shown},
                      {"names", names_},
                      {"ranks", std::move(ranks)}};
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace megalith::observe
