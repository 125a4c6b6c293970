// Restarts of a job: what a rank is told about earlier starts, and how much of the job's time was useful.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "megalith/comm/store/heartbeat.h"

namespace megalith::comm {

// One start of a job's ranks, up to where it got.
struct Attempt {
  int64_t first_step = 0, last_step = 0;  // completed steps; both 0 if there are none
  double step_seconds = 0;                // time of those steps
  double detect_seconds = 0;              // from the failed rank's last sign of life to the detection
};

// Facts about a job that a launcher passes to its ranks.
struct RankLaunch {
  Heartbeat heartbeat{};                          // this rank's slot; writes nowhere without a launcher
  int restarts = 0;                               // starts before this one
  int64_t started_ns = 0;                         // start of the whole job, by monotonic_ns
  int64_t failed_ns = 0;                          // when the last failure was detected; 0 if unknown or none
  std::vector<Attempt> earlier{};                 // earlier starts, oldest first
  bool launcher_tells = false;                    // the launcher itself reports the cost of restarts
  std::function<void(const Attempt&)> on_step{};  // called after each step with the progress so far; may be empty
  // Parks a process that has outlived the failure of another rank until the job's next start, and updates the members
  // above. Returns false if the process is to end instead. Empty unless ranks are restarted in their processes.
  std::function<bool(RankLaunch&)> wait_for_next_start{};
  // Returns whether this rank is the first of its launcher's to ask in this start: before ranks are connected, only
  // that one tells its error, since the others usually have the same. Empty without a launcher.
  std::function<bool()> has_first_word{};
};

// Returns "2 restarts in 61.0 s, of which 40.2 s were steps that count: goodput 65.9 %", over all attempts so far.
std::string restarts_in_words(const RankLaunch& launch, const std::vector<Attempt>& attempts);

// For a rank that our launcher did not start.
RankLaunch launch_from_env();

// Returns the seconds of steps whose results are still in use: steps that a later attempt repeated do not count.
double useful_seconds(const std::vector<Attempt>& attempts);

}  // namespace megalith::comm
