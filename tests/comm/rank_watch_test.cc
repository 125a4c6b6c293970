// Finding the rank that hangs, and counting the cost of a restart: decisions, without processes.
#include "megalith/comm/launch/rank_watch.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/comm/store/heartbeat.h"
#include "megalith/comm/store/restarts.h"
#include "tests/support/expect.h"

namespace megalith::comm {
namespace {

using Seconds = SectionLimits::Seconds;
using testing::expect_contains;

SectionLimits limits() {
  SectionLimits limits;
  limits.set("setup:60,step:5,checkpointing:30");
  limits.outside = Seconds(7);
  return limits;
}

RankSight sight(int rank, Section section, double silent, int64_t steps_done = 100) {
  return {
      .rank = rank, .section = section, .step = 12, .steps_done = steps_done, .silent = Seconds(silent), .stopped = {}};
}

std::vector<int> overdue(const std::vector<RankSight>& all) {
  std::vector<int> ranks;
  for (const RankSight& each : overdue_ranks(all, limits())) ranks.push_back(each.rank);
  return ranks;
}

TEST(RankWatch, EverySectionHasItsLimit) {
  EXPECT_EQ(overdue({sight(0, Section::kSetup, 59), sight(1, Section::kSetup, 61), sight(2, Section::kStep, 4),
                     sight(3, Section::kStep, 6), sight(4, Section::kData, 6), sight(5, Section::kEvaluation, 6),
                     sight(6, Section::kCheckpointing, 29), sight(7, Section::kCheckpointing, 31),
                     sight(8, Section::kOutside, 6), sight(9, Section::kOutside, 8)}),
            (std::vector<int>{1, 3, 4, 5, 7, 9}));
}

TEST(RankWatch, FirstStepsMayTakeAsLongAsTheSetUp) {
  EXPECT_EQ(overdue({sight(0, Section::kStep, 6, 4), sight(1, Section::kStep, 61, 4), sight(2, Section::kStep, 6, 5)}),
            (std::vector<int>{1, 2}));
}

TEST(RankWatch, AStoppedRankIsTheCulprit) {
  RankSight stopped = sight(1, Section::kStep, 11);
  stopped.stopped = Seconds(10.5);
  EXPECT_EQ(overdue({stopped}), std::vector<int>{1});
  const auto culprit = find_culprit({{sight(0, Section::kStep, 11), ""}, {stopped, "all_reduce"}}, limits());
  ASSERT_TRUE(culprit);
  EXPECT_EQ(culprit->rank, 1);
  expect_contains(culprit->reason, "rank 1 was stopped (SIGSTOP) 10.5 s ago, in a step after step 12");
}

// A rank that was stopped in a save, which may take long, holds up another one, whose step may not.
TEST(RankWatch, AStoppedRankIsTheCulpritInASectionWithALongerLimit) {
  RankSight stopped = sight(1, Section::kCheckpointing, 4);
  stopped.stopped = Seconds(4);
  EXPECT_EQ(overdue({sight(0, Section::kStep, 4.5), stopped}), std::vector<int>{});
  const std::vector<RankSight> all{sight(0, Section::kStep, 5.5), stopped, sight(2, Section::kCheckpointing, 4)};
  EXPECT_EQ(overdue(all), (std::vector<int>{0, 1}));
  std::vector<OverdueRank> late;
  for (const RankSight& each : overdue_ranks(all, limits())) late.push_back({each, ""});
  const auto culprit = find_culprit(late, limits());
  ASSERT_TRUE(culprit);
  EXPECT_EQ(culprit->rank, 1);
  expect_contains(culprit->reason, "rank 1 was stopped (SIGSTOP) 4.0 s ago");
}

TEST(RankWatch, TheRankThatWaitsForNobodyIsTheCulprit) {
  const auto culprit = find_culprit({{sight(0, Section::kStep, 9), "all_reduce 'loss' #3 of dp"},
                                     {sight(3, Section::kData, 6), ""},
                                     {sight(2, Section::kStep, 9), "all_reduce 'loss' #3 of dp"}},
                                    limits());
  ASSERT_TRUE(culprit);
  EXPECT_EQ(culprit->rank, 3);
  for (const char* part : {"rank 3 hangs", "loading data after step 12", "6.0 s", "limit 5 s"})
    expect_contains(culprit->reason, part);
}

TEST(RankWatch, RanksThatAllWaitGetAQuarterMore) {
  const auto found = [](double silent) {
    return find_culprit({{sight(0, Section::kStep, silent), "barrier 'a' #1 of world"},
                         {sight(1, Section::kStep, silent - 1), "all_reduce 'b' #9 of dp"}},
                        limits());
  };
  EXPECT_FALSE(found(6));
  ASSERT_TRUE(found(6.5));
  EXPECT_EQ(found(6.5)->rank, 0);
  for (const char* part : {"rank 0: barrier 'a'", "rank 1: all_reduce 'b'"}) expect_contains(found(6.5)->reason, part);
  EXPECT_FALSE(find_culprit({}, limits()));
}

TEST(RankWatch, RefusesInvalidLimits) {
  for (const char* words : {"step", "step:", "step:0", "step:-1", "step:5s", "epoch:5", "setup:5,,step:1"}) {
    SectionLimits all;
    try {
      all.set(words);
      ADD_FAILURE() << words;
    } catch (const ConfigError& error) {
      expect_contains(error.what(), "rank_section_timeouts");
    }
  }
}

TEST(Restarts, StepsThatAreDoneAgainDoNotCount) {
  // Steps 1..10 in 10 s; again from 6: 6..20 in 30 s; then from 21: 21..30 in 10 s.
  EXPECT_DOUBLE_EQ(useful_seconds({{1, 10, 10, 0}, {6, 20, 30, 0}, {21, 30, 10, 0}}), 5 + 30 + 10);
  // An attempt without a step; one that is lost altogether.
  EXPECT_DOUBLE_EQ(useful_seconds({{1, 10, 10, 0}, {0, 0, 0, 0}, {1, 4, 4, 0}}), 4);
  EXPECT_DOUBLE_EQ(useful_seconds({}), 0);
}

TEST(Heartbeats, TellWhereARankIs) {
  HeartbeatPage page(2);
  EXPECT_EQ(page.slot(1).section, static_cast<int>(Section::kSetup));
  const Heartbeat beat(page.slot(1));
  beat.enter(Section::kCheckpointing, 7);
  EXPECT_EQ(page.slot(1).section, static_cast<int>(Section::kCheckpointing));
  EXPECT_EQ(page.slot(1).step, 7);
  beat.step_done(8, 0.5);
  beat.step_done(9, 0.25);
  EXPECT_EQ(page.slot(1).first_step, 8);
  EXPECT_EQ(page.slot(1).step, 9);
  EXPECT_EQ(page.slot(1).steps_done, 2);
  EXPECT_EQ(page.slot(1).step_ns, 750000000);
  EXPECT_EQ(page.slot(0).steps_done, 0);
  page.restart();
  EXPECT_EQ(page.slot(1).steps_done, 0);
  Heartbeat().enter(Section::kStep, 1);  // nobody looks
}

}  // namespace
}  // namespace megalith::comm
