#include "megalith/comm/restarts.h"

#include <algorithm>

#include "megalith/base/env.h"

namespace megalith::comm {

RankLaunch launch_from_env() {
  RankLaunch launch;
  launch.restarts = static_cast<int>(env_int("TORCHELASTIC_RESTART_COUNT").value_or(0));
  launch.started_ns = monotonic_ns();
  return launch;
}

double useful_seconds(const std::vector<Attempt>& attempts) {
  double useful = 0;
  for (size_t i = 0; i < attempts.size(); ++i) {
    const Attempt& mine = attempts[i];
    if (mine.first_step == 0) continue;
    int64_t last = mine.last_step;
    for (size_t later = i + 1; later < attempts.size(); ++later)
      if (attempts[later].first_step > 0) last = std::min(last, attempts[later].first_step - 1);
    const auto kept = static_cast<double>(std::max<int64_t>(0, last - mine.first_step + 1));
    useful += mine.step_seconds * kept / static_cast<double>(mine.last_step - mine.first_step + 1);
  }
  return useful;
}

}  // namespace megalith::comm
