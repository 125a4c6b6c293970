// Pure arithmetic on the times that ranks leave in their heartbeat slots; the launcher decides when to look, and
// LimitLearning::keep where the result is kept.
#include "megalith/comm/launch/learned_limits.h"

#include <fmt/format.h>

#include <algorithm>

namespace megalith::comm {

namespace {

using Limit = std::optional<LearnedLimits::Seconds>;

constexpr int64_t kStepsToLearn = 16;  // as in the reference

Limit merged(const Limit& before, LearnedLimits::Seconds longest, double factor) {
  const auto now = std::max(kShortestLearned, factor * longest);
  if (!before || now >= *before) return now;
  return 0.5 * (*before + now);
}

}  // namespace

int LearnedLimits::count() const {
  return setup.has_value() + step.has_value() + checkpointing.has_value() + outside.has_value();
}

std::string LearnedLimits::in_words() const {
  std::string text;
  const auto add = [&](const char* name, const Limit& limit) {
    if (limit) text += fmt::format("{}{} {:.3g} s", text.empty() ? "" : ", ", name, limit->count());
  };
  add("setup", setup);
  add("step", step);
  add("checkpointing", checkpointing);
  add("outside", outside);
  return text;
}

SeenTimes SeenTimes::in(HeartbeatPage& page) {
  SeenTimes seen;
  for (int rank = 0; rank < page.size(); ++rank)
    for (size_t section = 0; section < kSections; ++section)
      seen.longest[section] = std::max<LearnedLimits::Seconds>(
          seen.longest[section], std::chrono::nanoseconds(page.slot(rank).longest_ns[section].load()));
  const HeartbeatSlot& first = page.slot(0);
  seen.steps_done = first.steps_done;
  seen.first_step = first.first_step;
  seen.saves = first.saves;
  return seen;
}

LearnedLimits learn(const LearnedLimits& before, const SeenTimes& seen, const LimitLearning& how) {
  const auto longest = [&](Section section) { return seen.longest[static_cast<size_t>(section)]; };
  LearnedLimits limits = before;
  const bool continued = seen.first_step > 1;
  if (continued && seen.steps_done >= std::max(1, how.warmup_steps))
    limits.setup = merged(before.setup, longest(Section::kSetup), how.factor);
  if (seen.steps_done >= kStepsToLearn && longest(Section::kStep).count() > 0) {
    limits.step =
        merged(before.step, std::max({longest(Section::kData), longest(Section::kStep), longest(Section::kEvaluation)}),
               how.factor);
    limits.knows_evaluations = before.knows_evaluations || longest(Section::kEvaluation).count() > 0;
  }
  if (seen.saves > 0 && !how.saves_in_background)
    limits.checkpointing = merged(before.checkpointing, longest(Section::kCheckpointing), how.factor);
  if (seen.ended_well && limits.setup && limits.step && seen.saves > 0)
    limits.outside = merged(before.outside, longest(Section::kOutside), how.factor);
  return limits;
}

}  // namespace megalith::comm
