// Which rank hangs? Decided from signs of life; pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/comm/store/heartbeat.h"

namespace megalith::comm {

// How long a rank may be in a section without a sign of life.
struct SectionLimits {
  using Seconds = std::chrono::duration<double>;
  Seconds setup{1800};
  Seconds step{1800};  // also loading data and each part of an evaluation
  Seconds checkpointing{1800};
  Seconds outside{1800};
  Seconds stopped{10};   // by SIGSTOP
  int warmup_steps = 5;  // steps after a start that have the set-up's limit, when that is longer

  // "setup:600,step:180,checkpointing:420": the limits that are named (the fault-tolerance launcher's
  // rank_section_timeouts). Throws ConfigError naming the part that is wrong.
  void set(const std::string& words);
  Seconds of(Section section, int64_t steps_done) const;
};

// What can be seen of a running rank.
struct RankSight {
  int rank = 0;
  Section section = Section::kSetup;
  int64_t step = 0;        // last that was done
  int64_t steps_done = 0;  // since the start
  SectionLimits::Seconds silent{0};
  std::optional<SectionLimits::Seconds> stopped;  // for how long
};
// Everything of it that is told in a message: "in a step after step 12".
std::string place_of(const RankSight& sight);

struct HungRank {
  int rank = 0;
  std::string reason;  // "rank 3 hangs: loading data after step 12, no sign of life for 60.1 s (limit 60 s); …"
};

// Ranks past their limit; usually most are, since they wait for the one at fault. Once there is one, ranks that were
// stopped count too, however long ago that was.
std::vector<RankSight> overdue_ranks(const std::vector<RankSight>& all, const SectionLimits& limits);

// The one at fault: a rank that was stopped; else one that waits for nobody; else, when the others had a quarter more
// time to be found on another machine, the one that is silent longest. `waits_for`: what a rank waits for in an
// operation, as in "all_reduce 'loss' #12 of tp"; empty: for nobody.
struct OverdueRank {
  RankSight sight;
  std::string waits_for;
};
std::optional<HungRank> find_culprit(const std::vector<OverdueRank>& overdue, const SectionLimits& limits);

}  // namespace megalith::comm
