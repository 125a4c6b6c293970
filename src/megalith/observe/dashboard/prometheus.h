// The newest numbers of runs in Prometheus' text format.
#pragma once

#include <span>
#include <string>

#include "megalith/observe/dashboard/run_view.h"

namespace megalith::observe {

// Returns a page for a Prometheus server to read:
//
//   # TYPE megalith_loss gauge
//   megalith_loss{run="out"} 2.345679
//   megalith_loss{run="other"} NaN
//   megalith_rank_wait_seconds{run="out",rank="0"} 0.02
//
// All are gauges. Each name of metrics.jsonl gives megalith_NAME, with "_" for characters that Prometheus does not
// take, and the newest value of each run; megalith_step is the step of the newest line, megalith_running 0 after the
// run's end, megalith_alerts the number of its alerts, and megalith_rank_… are the numbers of live.json.
std::string prometheus_text(std::span<const RunView> runs);

inline constexpr const char* kPrometheusType = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace megalith::observe
