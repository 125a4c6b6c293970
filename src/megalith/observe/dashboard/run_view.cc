// Collects everything about one run. Each source is read in guarded(): a file that is broken or unreadable becomes a
// line under "problems", and the rest of the page still works. Files are read again only when their version (device,
// inode, size, time) has changed.
#include "megalith/observe/dashboard/run_view.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/checkpoint/run_folder.h"
#include "megalith/io/json_text.h"
#include "megalith/observe/units.h"

namespace megalith::observe {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr double kNanosecondsPerSecond = 1e9;
// Larger files are a problem that is shown: 1 MiB of options or notes, 64 MiB of live.json, 512 MiB of timeline.
constexpr uint64_t kMostArgsBytes = 1 << 20, kMostLiveBytes = uint64_t{1} << 26, kMostTraceBytes = uint64_t{1} << 29;

// A JSON string. Bytes that are not UTF-8 (in names or options) become U+FFFD instead of an exception.
std::string text_json(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Returns the bytes of the regular files in a folder, without following links; stops after kMostEntries entries.
uint64_t folder_bytes(const fs::path& folder) {
  constexpr int kMostEntries = 20'000;
  uint64_t bytes = 0;
  std::error_code error;
  int entries = 0;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end && entries < kMostEntries;
       at.increment(error), ++entries) {
    std::error_code ignored;
    if (at->symlink_status(ignored).type() == fs::file_type::regular) bytes += at->file_size(ignored);
  }
  return bytes;
}

// Seconds since 1970; 0 if the folder has just been deleted, as a run that keeps few checkpoints does.
double changed_seconds(const fs::path& path) {
  std::error_code error;
  const auto time = fs::last_write_time(path, error);
  if (error) return 0;
  return std::chrono::duration<double>(fs::file_time_type::clock::to_sys(time).time_since_epoch()).count();
}

// Returns the name of the newest checkpoint from the tracker file, or "" if it is missing or broken.
std::string latest_name(const fs::path& run) try {
  const auto folder = checkpoint::read_tracker(run);
  return folder ? folder->filename().string() : "";
} catch (const DataError&) {
  return "";
}

}  // namespace

RunView::RunView(const fs::path& folder, std::string name)
    : folder_(fs::canonical(folder)),
      name_(std::move(name)),
      metrics_(folder_),
      events_(folder_),
      samples_(folder_),
      histograms_(folder_),
      args_{"args.yaml", kMostArgsBytes},
      live_{"live.json", kMostLiveBytes},
      trace_file_{"trace.json", kMostTraceBytes},
      notes_file_{kNotesFileName, kMostArgsBytes} {}

// Runs `read`, which returns whether something changed, and turns exceptions into problems.
template <typename Read>
void RunView::guarded(const Read& read) {
  try {
    if (read()) ++version_;
  } catch (const std::exception& error) {
    problems_.emplace_back(error.what());
  }
}

// The version grows when something changed, so the page asks for data only then.
void RunView::update() {
  const std::vector<std::string> before = std::exchange(problems_, {});
  const int64_t version_before = version_;
  guarded([this] { return metrics_.update(); });
  guarded([this] { return events_.update(); });
  guarded([this] { return samples_.update(); });
  guarded([this] { return histograms_.update(); });
  guarded([this] { return refresh(args_); });
  refresh_live();
  refresh_trace();
  refresh_checkpoints();
  refresh_notes();
  refresh_alerts(version_ != version_before);
  if (problems_ != before) ++version_;
}

// The version is noted before the text is read: a file that is too large is reported once per change, not read again.
bool RunView::refresh(WholeFile& file) {
  const std::optional<InsideFile> open = InsideFile::open(folder_, file.name);
  const std::optional<FileVersion> now = open ? std::optional(open->version()) : std::nullopt;
  if (now == file.version) return false;
  file.text.clear();
  file.version = now;
  if (open) file.text = open->text(file.most_bytes);
  return true;
}

// Parsed and written again: the page gets this text as part of its JSON, so it must be JSON whatever the file holds.
void RunView::refresh_live() {
  guarded([this] {
    if (!refresh(live_)) return false;
    live_json_ = "null";
    if (!live_.text.empty()) live_json_ = io::parse_json(live_.text, "live.json").dump();
    return true;
  });
}

void RunView::refresh_trace() {
  guarded([this] {
    if (!refresh(trace_file_)) return false;
    trace_.reset();
    if (!trace_file_.text.empty()) trace_ = TraceView::parse(trace_file_.text);
    trace_file_.text = {};  // only the view is needed
    return true;
  });
}

// Folders have no version of their own (a file in them may grow), so the list is made each time and compared as text.
void RunView::refresh_checkpoints() {
  guarded([this] {
    Json all = Json::array();
    const std::string latest = latest_name(folder_);
    largest_checkpoint_ = 0;
    for (const checkpoint::StepFolder& saved : checkpoint::list_checkpoints(folder_)) {
      if (fs::is_symlink(saved.folder)) continue;  // might lead outside the folder
      const std::string name = saved.folder.filename().string();
      const uint64_t bytes = folder_bytes(saved.folder);
      largest_checkpoint_ = std::max(largest_checkpoint_, bytes);
      all.push_back({{"name", name},
                     {"step", saved.step},
                     {"bytes", bytes},
                     {"time", changed_seconds(saved.folder)},
                     {"latest", name == latest}});
    }
    std::string text = all.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text == checkpoints_json_) return false;
    checkpoints_json_ = std::move(text);
    return true;
  });
}

// A file that is not notes is a problem that is shown; the notes are then empty.
void RunView::refresh_notes() {
  guarded([this] {
    if (!refresh(notes_file_)) return false;
    notes_ = {};
    if (!notes_file_.text.empty()) notes_ = RunNotes::from_json(notes_file_.text);
    return true;
  });
}

void RunView::refresh_alerts(bool changed) {
  constexpr double kPauseSeconds = 10;
  const double now = seconds_since_1970();
  if (!changed && now - judged_ < kPauseSeconds) return;
  judged_ = now;
  const auto series = [&](const char* name) {
    const MetricsReader::Series* found = metrics_.find(name);
    return found != nullptr ? &found->values : nullptr;
  };
  AlertFacts facts{.now = now,
                   .ended = events_.ended(),
                   .changed = static_cast<double>(metrics_.file().changed_ns()) / kNanosecondsPerSecond,
                   .loss = series("loss"),
                   .time = series("time"),
                   .events = &events_.events(),
                   .checkpoint_bytes = largest_checkpoint_};
  std::error_code error;
  if (const fs::space_info disk = fs::space(folder_, error); !error) facts.free_bytes = disk.available;
  guarded([&] {
    std::vector<Alert> alerts = alerts_of(facts);
    if (alerts == alerts_) return false;
    alerts_ = std::move(alerts);
    return true;
  });
}

void RunView::write_notes(const RunNotes& notes) { observe::write_notes(folder_, notes); }

// Concatenates parts that are JSON already; only names and texts are escaped here.
std::string RunView::json() const {
  std::string json = fmt::format(
      R"({{"name":{},"folder":{},"version":{},"lines":{},"malformed":{},"left_out":{},"changed":{:.3f},"series":)",
      text_json(name_), text_json(folder_.string()), version_, metrics_.lines(), metrics_.malformed(),
      metrics_.left_out(), static_cast<double>(metrics_.file().changed_ns()) / kNanosecondsPerSecond);
  metrics_.curves().append_json(json);
  json += ",\"events\":[";
  for (const std::string& event : events_.events()) {
    if (json.back() != '[') json += ',';
    json += event;
  }
  const auto& start = events_.start();
  json += fmt::format(R"(],"events_left_out":{},"malformed_events":{},"ended":{},"start":{},"layout":{},"live":{},)",
                      events_.left_out(), events_.malformed(), events_.ended(), start.empty() ? "null" : start,
                      layout_json(start).value_or("null"), live_json_);
  json += fmt::format(R"("samples":{},"histograms":{},"malformed_records":{},)", samples_.steps_json(),
                      histograms_.steps_json(), samples_.malformed() + histograms_.malformed());
  Json alerts = Json::array();
  for (const Alert& alert : alerts_)
    alerts.push_back({{"kind", alert.kind}, {"step", alert.step}, {"text", alert.text}});
  const auto dump = [](const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); };
  json += fmt::format(R"("trace":{},"checkpoints":{},"args":{},"notes":{},"tags":{},"alerts":{},"problems":{}}})",
                      trace_ ? trace_->summary_json() : "null", checkpoints_json_, text_json(args_.text),
                      text_json(notes_.notes), dump(notes_.tags), dump(alerts), dump(problems_));
  return json;
}

std::optional<std::string> RunView::part_json(int64_t from, int64_t to) const {
  try {
    std::string json = fmt::format(R"({{"from":{},"to":{},"version":{},"series":)", from, to, version_);
    metrics_.part(static_cast<double>(from), static_cast<double>(to)).append_json(json);
    return json + "}";
  } catch (const DataError&) {
    return std::nullopt;  // update() tells why
  }
}

std::optional<std::string> RunView::trace_step_json(size_t step) const {
  if (step >= trace_steps()) return std::nullopt;
  return trace_->step_json(step);
}

}  // namespace megalith::observe
