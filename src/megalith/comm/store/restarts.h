// Starting a job again: what a rank is told about the starts before its own, and how much of the job's time was of use.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "megalith/comm/store/heartbeat.h"

namespace megalith::comm {

// One start of a job's ranks, as far as it got.
struct Attempt {
  int64_t first_step = 0, last_step = 0;  // that it has done; both 0: none
  double step_seconds = 0;                // what those took
  double detect_seconds = 0;              // from the failed rank's last sign of life until the failure was seen
};

// What a launcher tells its ranks.
struct RankLaunch {
  Heartbeat heartbeat{};
  int restarts = 0;        // starts before this one
  int64_t started_ns = 0;  // of the whole job, by monotonic_ns
  int64_t failed_ns = 0;   // when the last failure was seen; 0: not known, or none
  std::vector<Attempt> earlier{};
  bool launcher_tells = false;                    // it says itself what restarts have cost
  std::function<void(const Attempt&)> on_step{};  // hears, after each step, how far this start has come; may be empty
};

// "2 restarts in 61.0 s, of which 40.2 s were steps that count: goodput 65.9 %", of all attempts until now.
std::string restarts_in_words(const RankLaunch& launch, const std::vector<Attempt>& attempts);

// For a rank without a launcher of ours.
RankLaunch launch_from_env();

// Seconds of steps whose results are still in use, in all attempts: those that a later attempt did again do not count.
double useful_seconds(const std::vector<Attempt>& attempts);

}  // namespace megalith::comm
