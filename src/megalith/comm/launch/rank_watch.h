// Finds the rank that hangs, from signs of life. Pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/comm/launch/learned_limits.h"
#include "megalith/comm/store/heartbeat.h"

namespace megalith::comm {

// How long a rank may stay in a section without a sign of life. A limit that is not given is the learned one, or
// kDefault before there is one.
struct SectionLimits {
  using Seconds = std::chrono::duration<double>;
  static constexpr Seconds kDefault{1800};
  std::optional<Seconds> setup{};          // from the start to the first step
  std::optional<Seconds> step{};           // also loading data and each part of an evaluation
  std::optional<Seconds> checkpointing{};  // saving
  std::optional<Seconds> outside{};        // between the sections above
  LearnedLimits learned{};
  Seconds stopped{10};   // stopped by SIGSTOP
  int warmup_steps = 5;  // the first steps, which have the limit of `setup` if that is longer

  // Sets the limits named in `words`: "setup:600,step:180,checkpointing:420" (rank_section_timeouts of the
  // fault-tolerance launcher). Throws ConfigError naming the faulty part.
  void set(const std::string& words);
  // Returns the limit of a section after `steps_done` steps.
  Seconds of(Section section, int64_t steps_done) const;
};

// A running rank as the launcher sees it, without asking it.
struct RankSight {
  int rank = 0;
  Section section = Section::kSetup;
  int64_t step = 0;                               // last completed step
  int64_t steps_done = 0;                         // steps since the start
  SectionLimits::Seconds silent{0};               // since its last sign of life
  std::optional<SectionLimits::Seconds> stopped;  // for how long it has been stopped
};
// Describes it for a message: "in a step after step 12".
std::string place_of(const RankSight& sight);

// The verdict.
struct HungRank {
  int rank = 0;
  std::string reason;  // "rank 3 hangs: loading data after step 12, no sign of life for 60.1 s (limit 60 s); …"
};

// Returns the ranks past their limit; usually most are, since they wait for the one at fault. Once there is one,
// stopped ranks count too, however recently they were stopped.
std::vector<RankSight> overdue_ranks(const std::vector<RankSight>& all, const SectionLimits& limits);

// Returns the rank at fault: one that was stopped; else one that waits for nobody; else, once the others have had a
// quarter more time to be found on another machine, the one that has been silent longest. `waits_for` is what a rank
// waits for in an operation, as in "all_reduce 'loss' #12 of tp"; empty if it waits for nobody.
struct OverdueRank {
  RankSight sight;
  std::string waits_for;
};
std::optional<HungRank> find_culprit(const std::vector<OverdueRank>& overdue, const SectionLimits& limits);

}  // namespace megalith::comm
