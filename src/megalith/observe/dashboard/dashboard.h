// Dashboard: the runs of some folders as a page, its data, and a report in one file. Knows requests and answers, no
// network.
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

struct DashboardAnswer {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  std::string nonce;  // of the page: the scripts and styles that may run (see page.h)
};

// Reads alone, and only what InsideFile lets it: nothing of a request ever becomes a path. Thread-safe.
class Dashboard {
 public:
  // The folders of runs. One that has no metrics.jsonl, events.jsonl or args.yaml, but folders that do, stands for all
  // of those. Runs are called by their folders, with as much of the path as tells them apart. Throws ConfigError when
  // one is not there or no folder, or when there are none or more than kMostRuns.
  explicit Dashboard(std::span<const std::filesystem::path> folders);

  size_t runs() const { return runs_.size(); }

  // Answers GET `path`:
  //   /                          the page
  //   /api/runs                  {"now":seconds since 1970,"runs":[{"name":…,"version":…},…]}; looks for news
  //   /api/runs/2                RunView::json
  //   /api/runs/2/trace/0        RunView::trace_step_json
  // Anything else is not found (404).
  DashboardAnswer answer(std::string_view path);

  // The page with everything in it: opens without a server. Of each timeline the first steps are there, up to
  // kMostReportBytes.
  std::string report();

  static constexpr size_t kMostRuns = 64;
  static constexpr size_t kMostReportBytes = size_t{1} << 25;

 private:
  void look_for_news();
  DashboardAnswer api(std::string_view path);

  std::mutex mutex_;  // guards what follows
  std::vector<RunView> runs_;
  std::optional<std::chrono::steady_clock::time_point> looked_;
};

}  // namespace megalith::observe
