// Time limits learned from the run itself (calc_ft_timeouts): a rank may be silent for a multiple of the longest time
// that ranks needed so far.
//
// The rules are those of Megatron-LM and NVIDIA's resiliency extension, except where docs/mapping.md says otherwise:
//
//   set-up          once a start has continued from a checkpoint and done its first steps: without loading one, the
//                   set-up is shorter than it will be after a failure
//   step            after 16 steps; its limit holds for evaluations once one of them has been timed
//   checkpointing   after a save, unless saves run in the background, where the time they take varies too much
//   outside         at the end of a run that has seen all of the above
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "megalith/comm/store/heartbeat.h"

namespace megalith::comm {

// Limits that runs have taught; std::nullopt for those not learned yet.
struct LearnedLimits {
  using Seconds = std::chrono::duration<double>;
  std::optional<Seconds> setup{}, step{}, checkpointing{}, outside{};
  bool knows_evaluations = false;  // `step` comes from evaluations, too, so it limits them as well
  bool operator==(const LearnedLimits&) const = default;

  // Returns how many of the four are known.
  int count() const;
  // Returns "setup 60 s, step 5 s"; for messages.
  std::string in_words() const;
};

// Times that the ranks of one start have shown so far.
struct SeenTimes {
  std::array<LearnedLimits::Seconds, kSections> longest{};  // the longest on any rank, by section; 0 if never left
  int64_t steps_done = 0;                                   // steps of rank 0
  int64_t first_step = 0;                                   // above 1 if the start continued from a checkpoint
  int64_t saves = 0;
  bool ended_well = false;

  // Reads the slots of all ranks; safe while they run.
  static SeenTimes in(HeartbeatPage& page);
};

// How limits are learned, and who keeps them.
struct LimitLearning {
  double factor = 5;                 // limit = factor * longest time seen
  bool saves_in_background = false;  // async_save
  int warmup_steps = 5;              // steps that count as set-up
  // Called with the limits whenever they have changed; keeps them for the next start. Must not throw.
  std::function<void(const LearnedLimits&)> keep = [](const LearnedLimits&) {};
};

// No limit is shorter, however fast the steps are: shorter pauses are normal.
constexpr LearnedLimits::Seconds kShortestLearned{5};

// Returns the limits after a start that began with `before`. A limit grows to what was seen at once, since one that is
// too short ends a healthy run; it shrinks by half of the difference, so that a single slow start is forgotten.
LearnedLimits learn(const LearnedLimits& before, const SeenTimes& seen, const LimitLearning& how);

}  // namespace megalith::comm
