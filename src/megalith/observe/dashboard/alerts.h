// Alerts: what is wrong with a run right now, in sentences.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "megalith/observe/dashboard/downsampled_series.h"

namespace megalith::observe {

// One thing that a person should know. `kind` is "nan", "loss_spike", "stall", "straggler" or "low_disk".
struct Alert {
  std::string kind;
  int64_t step = 0;  // steps done when it happened
  std::string text;
  bool operator==(const Alert&) const = default;
};

// Facts that alerts are judged by. Numbers that are not known are absent, pointers null.
struct AlertFacts {
  double now = 0;      // seconds since 1970
  bool ended = false;  // a run that has ended cannot stall or fill a disk
  double changed = 0;  // last change of metrics.jsonl, in seconds since 1970; 0 if there is no such file
  const DownsampledSeries* loss = nullptr;          // over steps
  const DownsampledSeries* time = nullptr;          // seconds since 1970 over steps
  const std::deque<std::string>* events = nullptr;  // JSON texts, as EventsReader::events
  std::optional<uint64_t> free_bytes{};             // room on the disk that holds the run
  uint64_t checkpoint_bytes = 0;                    // size of the largest checkpoint
};

// Returns the alerts that hold, most urgent first; none for a run that has not changed for a day, since nobody waits
// for it.
//   nan         the newest loss is not finite, or an update was skipped for it in the last kRecentSteps steps
//   loss_spike  a loss of the last lines exceeds the median of those before by 8 times their median deviation, and by
//               10 %; needs kSpikeLines lines
//   stall       no line for two minutes and for ten times the usual time between lines
//   straggler   log_straggler named a rank in the last kRecentSteps steps
//   low_disk    less room than two checkpoints, or than 1 GiB
std::vector<Alert> alerts_of(const AlertFacts& facts);

inline constexpr int64_t kRecentSteps = 100;
inline constexpr size_t kSpikeLines = 20;

}  // namespace megalith::observe
