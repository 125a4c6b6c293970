// Time limits that are learned from a run: arithmetic, without processes.
#include "megalith/comm/launch/learned_limits.h"

#include <gtest/gtest.h>

#include <thread>

#include "megalith/comm/launch/rank_watch.h"

namespace megalith::comm {
namespace {

using Seconds = LearnedLimits::Seconds;

size_t index_of(Section section) { return static_cast<size_t>(section); }

// A start that has continued from step 100, with two saves.
SeenTimes seen_times() {
  SeenTimes seen{.steps_done = 40, .first_step = 101, .saves = 2};
  seen.longest[index_of(Section::kSetup)] = Seconds(60);
  seen.longest[index_of(Section::kData)] = Seconds(1);
  seen.longest[index_of(Section::kStep)] = Seconds(2);
  seen.longest[index_of(Section::kCheckpointing)] = Seconds(10);
  seen.longest[index_of(Section::kOutside)] = Seconds(3);
  return seen;
}

TEST(LearnedLimits, AreAMultipleOfTheLongestTimes) {
  const LearnedLimits limits = learn({}, seen_times(), {});
  EXPECT_EQ(limits.setup, Seconds(300));
  EXPECT_EQ(limits.step, Seconds(10));
  EXPECT_EQ(limits.checkpointing, Seconds(50));
  EXPECT_EQ(limits.outside, std::nullopt);  // the end has not been seen
  EXPECT_EQ(limits.in_words(), "setup 300 s, step 10 s, checkpointing 50 s");
  EXPECT_EQ(learn({}, seen_times(), {.factor = 3}).step, Seconds(6));
}

TEST(LearnedLimits, WaitForEnoughToLearnFrom) {
  SeenTimes fresh = seen_times();
  fresh.first_step = 1;  // it loaded nothing, so the set-up was too short
  EXPECT_EQ(learn({}, fresh, {}).setup, std::nullopt);
  SeenTimes early = seen_times();
  early.steps_done = 4;  // not even the steps that count as set-up are over
  EXPECT_EQ(learn({}, early, {}).setup, std::nullopt);
  early.steps_done = 15;
  EXPECT_EQ(learn({}, early, {}).step, std::nullopt);
  SeenTimes unsaved = seen_times();
  unsaved.saves = 0;
  EXPECT_EQ(learn({}, unsaved, {}).checkpointing, std::nullopt);
  EXPECT_EQ(learn({}, seen_times(), {.saves_in_background = true}).checkpointing, std::nullopt);
  EXPECT_EQ(learn({}, SeenTimes{}, {}), LearnedLimits{});
}

TEST(LearnedLimits, KnowTheTimeOutsideWhenAWholeRunHasEnded) {
  SeenTimes whole = seen_times();
  whole.ended_well = true;
  EXPECT_EQ(learn({}, whole, {}).outside, Seconds(15));
  whole.first_step = 1;  // without the set-up it is not a whole run
  EXPECT_EQ(learn({}, whole, {}).outside, std::nullopt);
}

TEST(LearnedLimits, GrowAtOnceAndShrinkByHalf) {
  LearnedLimits before;
  before.step = Seconds(8);
  EXPECT_EQ(learn(before, seen_times(), {}).step, Seconds(10));
  before.step = Seconds(30);
  const LearnedLimits after = learn(before, seen_times(), {});
  EXPECT_EQ(after.step, Seconds(20));
  EXPECT_EQ(learn(before, seen_times(), {}), after);  // learning again in the same start changes nothing
}

TEST(LearnedLimits, AreNeverShorterThanAPause) {
  SeenTimes fast = seen_times();
  fast.longest[index_of(Section::kData)] = fast.longest[index_of(Section::kStep)] = Seconds(0.01);
  EXPECT_EQ(learn({}, fast, {}).step, kShortestLearned);
}

TEST(LearnedLimits, LimitEvaluationsOnlyAfterOne) {
  SectionLimits limits;
  limits.learned = learn({}, seen_times(), {});
  EXPECT_EQ(limits.of(Section::kStep, 20), Seconds(10));
  EXPECT_EQ(limits.of(Section::kData, 20), Seconds(10));
  EXPECT_EQ(limits.of(Section::kEvaluation, 20), SectionLimits::kDefault);
  SeenTimes evaluated = seen_times();
  evaluated.longest[index_of(Section::kEvaluation)] = Seconds(7);  // longer than any step
  limits.learned = learn({}, evaluated, {});
  EXPECT_EQ(limits.of(Section::kStep, 20), Seconds(35));
  EXPECT_EQ(limits.of(Section::kEvaluation, 20), Seconds(35));
}

TEST(LearnedLimits, GiveWayToGivenOnes) {
  SectionLimits limits;
  limits.set("step:77");
  limits.learned = learn({}, seen_times(), {});
  EXPECT_EQ(limits.of(Section::kStep, 20), Seconds(77));
  EXPECT_EQ(limits.of(Section::kCheckpointing, 20), Seconds(50));
  EXPECT_EQ(limits.of(Section::kStep, 0), Seconds(300));  // a first step has the time of the set-up
  EXPECT_EQ(limits.of(Section::kOutside, 20), SectionLimits::kDefault);
}

// Steps that become slower, each within the factor of the slowest before: every save raises the limit in time.
TEST(LearnedLimits, FollowStepsThatBecomeSlower) {
  SectionLimits limits;
  SeenTimes seen = seen_times();
  for (double step = 2; step < 2000; step *= 4) {
    seen.longest[index_of(Section::kStep)] = Seconds(step);
    limits.learned = learn(limits.learned, seen, {});
    EXPECT_GT(limits.of(Section::kStep, 20), Seconds(4 * step));
  }
}

TEST(SeenTimes, ComeFromTheHeartbeats) {
  HeartbeatPage page(2, /*warmup_steps=*/1);
  const Heartbeat first(page.slot(0)), second(page.slot(1));
  const auto pass = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
  const auto longest = [&](Section section) { return SeenTimes::in(page).longest[index_of(section)].count(); };
  EXPECT_EQ(longest(Section::kSetup), 0);
  first.enter(Section::kStep, 0);
  pass(60);  // the first step counts as set-up
  first.step_done(1, 0.06);
  EXPECT_GE(longest(Section::kSetup), 0.06);
  EXPECT_EQ(longest(Section::kStep), 0);
  first.enter(Section::kStep, 1);
  first.step_done(2, 0);
  EXPECT_GT(longest(Section::kStep), 0);
  second.enter(Section::kCheckpointing, 0);
  pass(30);
  second.enter(Section::kOutside, 0);
  EXPECT_GE(longest(Section::kCheckpointing), 0.03);  // on any rank
  EXPECT_EQ(SeenTimes::in(page).saves, 0);            // counted on rank 0
  first.enter(Section::kCheckpointing, 2);
  EXPECT_EQ(SeenTimes::in(page).saves, 0);
  first.enter(Section::kData, 2);
  const SeenTimes seen = SeenTimes::in(page);
  EXPECT_EQ(seen.saves, 1);
  EXPECT_EQ(seen.steps_done, 2);
  EXPECT_EQ(seen.first_step, 1);
  page.restart();
  EXPECT_EQ(longest(Section::kSetup), 0);
}

}  // namespace
}  // namespace megalith::comm
