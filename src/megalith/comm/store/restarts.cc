// Goodput is the share of a job's time whose steps are part of the final result. A start that failed at step 120 after
// a save at step 100 is followed by one that repeats 101 to 120; those twenty count once, for the later start.
#include "megalith/comm/store/restarts.h"

#include <fmt/format.h>

#include <algorithm>

#include "megalith/comm/store/rendezvous.h"

namespace megalith::comm {

RankLaunch launch_from_env() {
  RankLaunch launch;
  const Rendezvous place = rendezvous_from_env();
  if (!place.counts_alone()) launch.restarts = place.restarts;  // otherwise the ranks have to agree first
  launch.started_ns = monotonic_ns();
  return launch;
}

std::string restarts_in_words(const RankLaunch& launch, const std::vector<Attempt>& attempts) {
  const double seconds = static_cast<double>(monotonic_ns() - launch.started_ns) / 1e9;
  const double useful = useful_seconds(attempts);
  return fmt::format("{} restart{} in {:.1f} s, of which {:.1f} s were steps that count: goodput {:.1f} %",
                     launch.restarts, launch.restarts == 1 ? "" : "s", seconds, useful, 100 * useful / seconds);
}

// An attempt's steps count up to the first step that a later attempt did again; its time is shared out evenly.
double useful_seconds(const std::vector<Attempt>& attempts) {
  double useful = 0;
  for (size_t i = 0; i < attempts.size(); ++i) {
    const Attempt& attempt = attempts[i];
    if (attempt.first_step == 0) continue;
    int64_t last = attempt.last_step;
    for (size_t later = i + 1; later < attempts.size(); ++later)
      if (attempts[later].first_step > 0) last = std::min(last, attempts[later].first_step - 1);
    const auto kept = static_cast<double>(std::max<int64_t>(0, last - attempt.first_step + 1));
    useful += attempt.step_seconds * kept / static_cast<double>(attempt.last_step - attempt.first_step + 1);
  }
  return useful;
}

}  // namespace megalith::comm
