// Routing of requests, and the names of runs. A request can only contain a fixed word or a small number, which is an
// index into the list of runs: nothing from the network ever reaches the file system as a path.
#include "megalith/observe/dashboard/dashboard.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/observe/dashboard/access.h"
#include "megalith/observe/dashboard/page.h"
#include "megalith/observe/dashboard/prometheus.h"
#include "megalith/observe/units.h"

namespace megalith::observe {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

// Any one of the files will do: a run that has just started has written args.yaml but no metrics.
bool holds_run(const fs::path& folder) {
  std::error_code error;
  return std::ranges::any_of(std::array{"metrics.jsonl", "events.jsonl", "args.yaml"},
                             [&](const char* name) { return fs::exists(folder / name, error); });
}

// Returns the folder itself or the runs in it; a folder without any counts as a run that has not begun.
std::vector<fs::path> runs_in(const fs::path& folder) {
  std::error_code error;
  check<ConfigError>(fs::is_directory(folder, error),
                     "{} is not a folder; pass the output_dir of a run, or a folder that contains such folders",
                     folder.string());
  if (holds_run(folder)) return {folder};
  std::vector<fs::path> run_folders;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    // Links are not followed: "latest" would show the same run a second time.
    if (at->is_directory(error) && !at->is_symlink(error) && holds_run(at->path())) run_folders.push_back(at->path());
  std::ranges::sort(run_folders);
  return run_folders.empty() ? std::vector{folder} : run_folders;
}

// Returns the last part of each path, prefixed by as many parts as it takes to make the names unique. Example:
// /a/x/out, /a/y/out, /b/z -> "x/out", "y/out", "z".
std::vector<std::string> names_of(const std::vector<fs::path>& paths) {
  std::vector<fs::path> rest, names(paths.size());
  for (const fs::path& path : paths) rest.push_back(fs::canonical(path));
  const auto same = [&](size_t i) { return std::ranges::count(names, names[i]) > 1; };
  // Each round lengthens all names that are still ambiguous, by one folder; it ends, because canonical paths differ.
  for (bool again = true; again;) {
    again = false;
    std::vector<size_t> to_lengthen;
    for (size_t i = 0; i < names.size(); ++i)
      if (rest[i].has_relative_path() && (names[i].empty() || same(i))) to_lengthen.push_back(i);
    for (const size_t i : to_lengthen) {
      names[i] = names[i].empty() ? rest[i].filename() : rest[i].filename() / names[i];
      rest[i] = rest[i].parent_path();
      again = true;
    }
  }
  std::vector<std::string> texts;
  for (const fs::path& name : names) texts.push_back(name.string());
  return texts;
}

// Parses a number without sign, of at most `digits`; std::nullopt for anything else.
std::optional<int64_t> number_in(std::string_view text, size_t digits) {
  if (text.empty() || text.size() > digits || !std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; }))
    return std::nullopt;
  return parse_int(text);
}

std::optional<size_t> index_in(std::string_view text) {
  // Enough for every traced step and run, and far from an overflow.
  constexpr size_t kMostDigits = 6;
  const auto number = number_in(text, kMostDigits);
  return number ? std::optional(static_cast<size_t>(*number)) : std::nullopt;
}

// "1000-2000".
std::optional<std::pair<int64_t, int64_t>> steps_in(const std::string& text) {
  constexpr size_t kMostDigits = 15;  // below 2^53
  const size_t dash = text.find('-');
  if (dash == std::string::npos) return std::nullopt;
  const auto from = number_in(std::string_view(text).substr(0, dash), kMostDigits);
  const auto to = number_in(std::string_view(text).substr(dash + 1), kMostDigits);
  if (!from || !to) return std::nullopt;
  return std::pair(*from, *to);
}

// Answers "trace/0", "steps/1000-2000", "samples/0", "histograms" and "histograms/0"; std::nullopt for anything else.
std::optional<std::string> part_of_run(const RunView& run, std::span<const std::string> words) {
  if (words.size() == 1 && words[0] == "histograms") return run.histograms().summary_json();
  if (words.size() == 2 && words[0] == "steps") {
    const auto steps = steps_in(words[1]);
    return steps ? run.part_json(steps->first, steps->second) : std::nullopt;
  }
  const auto number = words.size() == 2 ? index_in(words[1]) : std::nullopt;
  if (!number) return std::nullopt;
  if (words[0] == "trace") return run.trace_step_json(*number);
  if (words[0] == "samples") return run.samples().json(*number);
  if (words[0] == "histograms") return run.histograms().row_json(*number);
  return std::nullopt;
}

// Appends a JSON list of what `item` returns for 0 to count - 1, which ends earlier once a report is full.
template <typename Item>
void append_list(std::string& data, size_t count, const Item& item) {
  data += '[';
  for (size_t i = 0; i < count && data.size() < Dashboard::kMostReportBytes; ++i) {
    if (i > 0) data += ',';
    data += item(i);
  }
  data += ']';
}

// The same answer for every bad path: it does not reveal which part was wrong.
DashboardAnswer not_found() { return {404, "application/json", R"({"error":"there is nothing here"})", ""}; }

}  // namespace

Dashboard::Dashboard(std::span<const fs::path> folders, const DashboardSettings& settings)
    : write_token_(settings.takes_notes ? random_nonce() : "") {
  check<ConfigError>(!folders.empty(), "there is no run to show; pass the output_dir of a run");
  std::vector<fs::path> paths;
  for (const fs::path& folder : folders)
    for (fs::path& run : runs_in(folder))
      if (std::ranges::find(paths, run) == paths.end()) paths.push_back(std::move(run));
  check<ConfigError>(paths.size() <= kMostRuns,
                     "these folders contain {} runs, but at most {} can be shown. Pass only the runs to compare",
                     paths.size(), kMostRuns);
  // Names are made for all runs together, since each depends on the others.
  const std::vector<std::string> names = names_of(paths);
  // The order of the arguments, and of folders by name, is the index of a run in every request.
  runs_.reserve(paths.size());
  for (size_t i = 0; i < paths.size(); ++i) runs_.emplace_back(paths[i], names[i]);
}

void Dashboard::look_for_news() {
  constexpr auto kPause = std::chrono::milliseconds(500);  // several open pages must not read the files several times
  const auto now = std::chrono::steady_clock::now();
  if (looked_ && now - *looked_ < kPause) return;
  for (RunView& run : runs_) run.update();
  looked_ = std::chrono::steady_clock::now();
}

DashboardAnswer Dashboard::answer(std::string_view path) {
  if (path == "/") {
    const std::string nonce = random_nonce();
    return {200, "text/html; charset=utf-8", page_html("null", nonce, write_token_), nonce};
  }
  if (path == "/metrics") {
    const std::scoped_lock lock(mutex_);
    look_for_news();
    return {200, kPrometheusType, prometheus_text(runs_), ""};
  }
  constexpr std::string_view kApi = "/api/runs";
  if (!path.starts_with(kApi)) return not_found();
  const std::scoped_lock lock(mutex_);
  return api(path.substr(kApi.size()));
}

DashboardAnswer Dashboard::api(std::string_view path) {
  look_for_news();
  if (path.empty()) {
    Json list = Json::array();
    for (const RunView& run : runs_) list.push_back({{"name", run.name()}, {"version", run.version()}});
    const Json document{{"now", seconds_since_1970()}, {"runs", std::move(list)}};
    return {200, "application/json", document.dump(-1, ' ', false, Json::error_handler_t::replace), ""};
  }
  const std::vector<std::string> parts = split(path, '/');  // "", run[, part of it[, number]]
  const auto run = parts.size() >= 2 && parts[0].empty() ? index_in(parts[1]) : std::nullopt;
  if (!run || *run >= runs_.size()) return not_found();
  if (parts.size() == 2) return {200, "application/json", runs_[*run].json(), ""};
  auto body = part_of_run(runs_[*run], std::span(parts).subspan(2));
  if (!body) return not_found();
  return {200, "application/json", std::move(*body), ""};
}

DashboardAnswer Dashboard::post(std::string_view path, std::string_view body, std::string_view write_token) {
  const auto refused = [](int status, const std::string& reason) -> DashboardAnswer {
    return {status, "application/json", Json{{"error", reason}}.dump(-1, ' ', false, Json::error_handler_t::replace),
            ""};
  };
  if (!same_secret(write_token, write_token_))
    return refused(403, write_token_.empty() ? "this dashboard takes no notes: it was started with --read-only"
                                             : "only the dashboard's own page may write; load it again");
  const std::vector<std::string> parts = split(path, '/');  // "", "api", "runs", run, "notes"
  const auto run = parts.size() == 5 && path.starts_with("/api/runs/") ? index_in(parts[3]) : std::nullopt;
  if (!run || parts[4] != "notes") return not_found();
  const std::scoped_lock lock(mutex_);
  if (*run >= runs_.size()) return not_found();
  try {
    runs_[*run].write_notes(RunNotes::from_json(body));
  } catch (const DataError& error) {
    return refused(400, error.what());
  }
  looked_.reset();  // the next request shows the new notes
  return {204, "application/json", "", ""};
}

std::vector<Dashboard::RunAlert> Dashboard::alerts() {
  const std::scoped_lock lock(mutex_);
  look_for_news();
  std::vector<RunAlert> all;
  for (const RunView& run : runs_)
    for (const Alert& alert : run.alerts()) all.push_back({run.name(), alert});
  return all;
}

// Texts are appended rather than built as one JSON document, which would double the memory of large timelines.
std::string Dashboard::report() {
  const std::scoped_lock lock(mutex_);
  look_for_news();
  std::string data = fmt::format(R"({{"now":{:.3f},"runs":[)", seconds_since_1970());
  for (const RunView& run : runs_) {
    if (&run != runs_.data()) data += ',';
    data += run.json();
  }
  data += ']';
  // One entry per run under each name.
  const auto add = [&](const char* name, const auto& of_run) {
    data += fmt::format(",\"{}\":[", name);
    for (const RunView& run : runs_) {
      if (&run != runs_.data()) data += ',';
      of_run(run);
    }
    data += ']';
  };
  add("samples", [&](const RunView& run) {
    append_list(data, run.samples().size(), [&](size_t i) { return *run.samples().json(i); });
  });
  add("histograms", [&](const RunView& run) {
    data += "{\"summary\":" + run.histograms().summary_json() + ",\"rows\":";
    append_list(data, run.histograms().rows(), [&](size_t i) { return *run.histograms().row_json(i); });
    data += '}';
  });
  add("traces", [&](const RunView& run) {
    append_list(data, run.trace_steps(), [&](size_t i) { return *run.trace_step_json(i); });
  });
  data += '}';
  return page_html(data, random_nonce(), "");
}

}  // namespace megalith::observe
