// When one rank hangs, the others soon hang with it, because they wait for it in collectives; after a while all of them
// are past their limits. The culprit is the one that waits for nobody: it computes, loads data or sleeps. What a rank
// waits for is in the status that its watchdog posts. If every rank waits for another, they are in a deadlock, or the
// culprit is on another machine, whose launcher gets a quarter more time to find it first.
#include "megalith/comm/launch/rank_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "megalith/base/error.h"
#include "megalith/base/text.h"

namespace megalith::comm {

using Seconds = SectionLimits::Seconds;

void SectionLimits::set(const std::string& words) {
  for (const std::string& word : split(words, ',')) {
    const size_t colon = word.find(':');
    const std::string name = word.substr(0, colon), number = colon == std::string::npos ? "" : word.substr(colon + 1);
    char* end = nullptr;
    // "step:180" -> step = 180 s; the whole number must be used up, so "180s" is refused.
    const double value = std::strtod(number.c_str(), &end);
    std::optional<Seconds>* const limit = name == "setup"           ? &setup
                                          : name == "step"          ? &step
                                          : name == "checkpointing" ? &checkpointing
                                                                    : nullptr;
    check<ConfigError>(limit != nullptr && !number.empty() && *end == '\0' && value > 0,
                       "rank_section_timeouts: \"{}\" is not a section with its seconds; write setup:600,step:180,"
                       "checkpointing:420 (any of the three)",
                       word);
    *limit = Seconds(value);
  }
}

// Evaluation and loading data have the limit of a step. One that was learned from steps alone says nothing about
// evaluations, whose first parts may take far longer.
Seconds SectionLimits::of(Section section, int64_t steps_done) const {
  const auto limit = [](const std::optional<Seconds>& given, const std::optional<Seconds>& learned_limit) {
    return given.value_or(learned_limit.value_or(kDefault));
  };
  switch (section) {
    case Section::kSetup:
      return limit(setup, learned.setup);
    case Section::kCheckpointing:
      return limit(checkpointing, learned.checkpointing);
    case Section::kOutside:
      return limit(outside, learned.outside);
    default: {
      const bool applies = section != Section::kEvaluation || learned.knows_evaluations;
      const Seconds in_step = limit(step, applies ? learned.step : std::nullopt);
      return steps_done < warmup_steps ? std::max(limit(setup, learned.setup), in_step) : in_step;
    }
  }
}

std::string place_of(const RankSight& sight) {
  if (sight.section == Section::kSetup) return "in the set-up";
  if (sight.section == Section::kData) return fmt::format("loading data after step {}", sight.step);
  return fmt::format("in {} after step {}", to_string(sight.section), sight.step);
}

std::vector<RankSight> overdue_ranks(const std::vector<RankSight>& all, const SectionLimits& limits) {
  std::vector<RankSight> late;
  for (const RankSight& sight : all)
    if (sight.silent > limits.of(sight.section, sight.steps_done) || (sight.stopped && *sight.stopped > limits.stopped))
      late.push_back(sight);
  if (late.empty()) return late;
  // A stopped rank may be in a section with a longer limit than that of the ranks that wait for it.
  const auto is_late = [&](const RankSight& each) {
    return std::ranges::any_of(late, [&](const RankSight& one) { return one.rank == each.rank; });
  };
  for (const RankSight& each : all)
    if (each.stopped && !is_late(each)) late.push_back(each);
  return late;
}

std::optional<HungRank> find_culprit(const std::vector<OverdueRank>& overdue, const SectionLimits& limits) {
  const auto limit = [&](const OverdueRank& each) { return limits.of(each.sight.section, each.sight.steps_done); };
  const auto found = [&](const OverdueRank& each, const std::string& why) {
    return HungRank{each.sight.rank,
                    fmt::format("rank {} hangs: {}, no sign of life for {:.1f} s (limit {:g} s){}", each.sight.rank,
                                place_of(each.sight), each.sight.silent.count(), limit(each).count(), why)};
  };
  for (const OverdueRank& each : overdue)
    if (each.sight.stopped)
      return HungRank{each.sight.rank, fmt::format("rank {} was stopped (SIGSTOP) {:.1f} s ago, {}", each.sight.rank,
                                                   each.sight.stopped->count(), place_of(each.sight))};
  // Ranks that wait in an operation wait for somebody; the one that does not is what they wait for.
  for (const OverdueRank& each : overdue)
    if (each.waits_for.empty()) return found(each, "; it waits for no other rank");
  const auto oldest = std::ranges::max_element(overdue, {}, [](const OverdueRank& each) { return each.sight.silent; });
  // 1.25: the quarter more for launchers of other machines.
  if (oldest == overdue.end() || oldest->sight.silent < 1.25 * limit(*oldest)) return std::nullopt;
  std::string waiting;
  for (const OverdueRank& each : overdue) waiting += fmt::format("\n  rank {}: {}", each.sight.rank, each.waits_for);
  return found(*oldest, "; ranks wait for one another:" + waiting);
}

}  // namespace megalith::comm
