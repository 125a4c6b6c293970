// Dashboard: serves the runs of some folders as a page with its data, or as a report in one file. Knows requests and
// answers, but not the network.
#pragma once

#include <chrono>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/observe/dashboard/run_view.h"

namespace megalith::observe {

// The answer to a request. `type` is a MIME type; `nonce` is empty for everything but the page.
struct DashboardAnswer {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  std::string nonce;  // for the page: identifies the scripts and styles that may run (see page.h)
};

// Whether people may write notes from the page.
struct DashboardSettings {
  bool takes_notes = false;
};

// Reads only through InsideFile, and writes nothing but notes.json of a run: no part of a request ever becomes a path.
// Thread-safe.
class Dashboard {
 public:
  // Takes the folders of runs. A folder without metrics.jsonl, events.jsonl and args.yaml, but with subfolders that
  // have one of them, stands for all of these. Runs are named after their folders, with as much of the path as
  // distinguishes them. Throws ConfigError when a folder does not exist or is not a folder, or when there are no runs
  // or more than kMostRuns.
  explicit Dashboard(std::span<const std::filesystem::path> folders, const DashboardSettings& settings = {});

  size_t runs() const { return runs_.size(); }

  // Answers a GET of `path`:
  //   /                          the page
  //   /api/runs                  {"now":seconds since 1970,"runs":[{"name":…,"version":…},…]}; reads new data first
  //   /api/runs/2                RunView::json
  //   /api/runs/2/steps/10-20    RunView::part_json: the curves of steps 10 to 20 in full
  //   /api/runs/2/trace/0        RunView::trace_step_json
  //   /api/runs/2/samples/0      SamplesReader::json
  //   /api/runs/2/histograms     HistogramsReader::summary_json
  //   /api/runs/2/histograms/0   HistogramsReader::row_json
  //   /metrics                   prometheus_text
  // Anything else is not found (404).
  DashboardAnswer answer(std::string_view path);

  // Answers a POST to /api/runs/2/notes, whose body is notes.json (see notes_file.h): 204, or an object with "error".
  // `write_token` is what this dashboard's page carries; without it the request is refused (403), and so is every
  // request to a dashboard that takes no notes.
  DashboardAnswer post(std::string_view path, std::string_view body, std::string_view write_token);

  // An alert and the name of its run.
  struct RunAlert {
    std::string run;
    Alert alert;
  };
  // Returns the alerts of all runs; reads new data first.
  std::vector<RunAlert> alerts();

  // Returns the page with all data in it, which opens without a server. Of timelines, texts and histograms it contains
  // the first ones, up to kMostReportBytes in all.
  std::string report();

  // More runs than colors and patience; and 32 MiB, beyond which a report becomes too large to mail.
  static constexpr size_t kMostRuns = 64;
  static constexpr size_t kMostReportBytes = size_t{1} << 25;

 private:
  // Reads the folders again, at most twice per second however many pages are open; requires mutex_.
  void look_for_news();
  DashboardAnswer api(std::string_view path);

  const std::string write_token_;  // empty if it takes no notes
  std::mutex mutex_;               // guards the fields below
  std::vector<RunView> runs_;
  std::optional<std::chrono::steady_clock::time_point> looked_;  // when the folders were last read
};

}  // namespace megalith::observe
