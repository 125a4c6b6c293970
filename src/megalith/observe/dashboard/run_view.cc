// Collects everything about one run. Each source is read in guarded(): a file that is broken or unreadable becomes a
// line under "problems", and the rest of the page still works. Files are read again only when their version (device,
// inode, size, time) has changed.
#include "megalith/observe/dashboard/run_view.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/checkpoint/run_folder.h"
#include "megalith/io/json_text.h"

namespace megalith::observe {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

// Larger files are a problem that is shown: 1 MiB of options, 64 MiB of live.json, 512 MiB of timeline.
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
      args_{"args.yaml", kMostArgsBytes},
      live_{"live.json", kMostLiveBytes},
      trace_file_{"trace.json", kMostTraceBytes} {}

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
  guarded([this] { return metrics_.update(); });
  guarded([this] { return events_.update(); });
  guarded([this] { return refresh(args_); });
  refresh_live();
  refresh_trace();
  refresh_checkpoints();
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
    for (const checkpoint::StepFolder& saved : checkpoint::list_checkpoints(folder_)) {
      if (fs::is_symlink(saved.folder)) continue;  // might lead outside the folder
      const std::string name = saved.folder.filename().string();
      all.push_back({{"name", name},
                     {"step", saved.step},
                     {"bytes", folder_bytes(saved.folder)},
                     {"time", changed_seconds(saved.folder)},
                     {"latest", name == latest}});
    }
    std::string text = all.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text == checkpoints_json_) return false;
    checkpoints_json_ = std::move(text);
    return true;
  });
}

// Concatenates parts that are JSON already; only names and texts are escaped here.
std::string RunView::json() const {
  constexpr double kNanoseconds = 1e9;
  std::string json = fmt::format(
      R"({{"name":{},"folder":{},"version":{},"lines":{},"malformed":{},"left_out":{},"changed":{:.3f},"series":{{)",
      text_json(name_), text_json(folder_.string()), version_, metrics_.lines(), metrics_.malformed(),
      metrics_.left_out(), static_cast<double>(metrics_.file().changed_ns()) / kNanoseconds);
  for (const MetricsReader::Series& series : metrics_.series()) {
    if (&series != metrics_.series().data()) json += ',';
    json += text_json(series.name) + ":";
    series.values.append_json(json);
  }
  json += "},\"events\":[";
  for (const std::string& event : events_.events()) {
    if (json.back() != '[') json += ',';
    json += event;
  }
  const auto& start = events_.start();
  json += fmt::format(R"(],"events_left_out":{},"malformed_events":{},"ended":{},"start":{},"layout":{},"live":{},)",
                      events_.left_out(), events_.malformed(), events_.ended(), start.empty() ? "null" : start,
                      layout_json(start).value_or("null"), live_json_);
  json += fmt::format(R"("trace":{},"checkpoints":{},"args":{},"problems":{}}})",
                      trace_ ? trace_->summary_json() : "null", checkpoints_json_, text_json(args_.text),
                      Json(problems_).dump(-1, ' ', false, Json::error_handler_t::replace));
  return json;
}

std::optional<std::string> RunView::trace_step_json(size_t step) const {
  if (step >= trace_steps()) return std::nullopt;
  return trace_->step_json(step);
}

}  // namespace megalith::observe
