#include "megalith/comm/store/agreed_start.h"

#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <random>
#include <thread>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/comm/store/start_record.h"

namespace megalith::comm {
namespace {

using std::chrono::milliseconds;

// A start of the job: a thread a rank, each with what its agent counts, and late by some milliseconds.
std::vector<AgreedStart> start_ranks(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& restarts,
                                     const std::vector<int>& delays_ms = {}) {
  std::vector<AgreedStart> agreed(restarts.size());
  {
    std::vector<std::jthread> ranks;
    for (size_t r = 0; r < restarts.size(); ++r)
      ranks.emplace_back([&, r] {
        if (!delays_ms.empty()) std::this_thread::sleep_for(milliseconds(delays_ms[r]));
        agreed[r] = agree_on_start(store, static_cast<int>(r), static_cast<int>(restarts.size()), restarts[r],
                                   milliseconds(20000));
      });
  }
  return agreed;
}

// All ranks share one set of keys, and see nothing that another start left.
void expect_own_keys(const std::vector<AgreedStart>& start, const std::string& mark) {
  EXPECT_FALSE(start[0].store->check({"mark"})) << mark;
  start[0].store->set("mark", mark);
  for (const AgreedStart& rank : start) EXPECT_EQ(rank.store->get_to_str("mark"), mark);
}

TEST(AgreedStart, AFirstStartHasNoRestarts) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto start = start_ranks(store, {0, 0, 0});
  for (const AgreedStart& rank : start) EXPECT_EQ(rank.restarts, 0);
  expect_own_keys(start, "first");
}

TEST(AgreedStart, AnAgentThatCountsNoRestartIsTold) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  expect_own_keys(start_ranks(store, {0, 0}), "first");
  const auto again = start_ranks(store, {0, 1}, {0, 50});  // rank 0 comes while the old number of rank 1 is there
  for (const AgreedStart& rank : again) EXPECT_EQ(rank.restarts, 1);
  expect_own_keys(again, "again");
}

TEST(AgreedStart, OfAnotherNumberOfRanksIsARestartThatNobodyCounts) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  expect_own_keys(start_ranks(store, {0, 0, 0}), "three");
  const auto again = start_ranks(store, {0, 0});
  for (const AgreedStart& rank : again) EXPECT_EQ(rank.restarts, 1);
  expect_own_keys(again, "two");
}

// When each start serves a new store, only the counts tell.
TEST(AgreedStart, CountsOfTheAgentsSufficeInAFreshStore) {
  const auto start = start_ranks(c10::make_intrusive<c10d::HashStore>(), {0, 2, 1});
  for (const AgreedStart& rank : start) EXPECT_EQ(rank.restarts, 2);
}

TEST(AgreedStart, RanksThatDiedWhileTheyCameLeaveNothingThatCounts) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  for (const int rank : {0, 2, 1})
    EXPECT_THROW(agree_on_start(store, rank, 3, 0, milliseconds(30)), CommError) << "nobody else is there";
  const auto start = start_ranks(store, {0, 0, 0}, {20, 0, 40});
  for (const AgreedStart& rank : start) EXPECT_EQ(rank.restarts, 0);
  expect_own_keys(start, "first");
}

TEST(AgreedStart, HoldsForManyStartsInAnyOrder) {
  std::mt19937 random(7);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<int> counts(5, 0);
  for (int number = 0; number < 12; ++number) {
    std::vector<int> delays;
    for (size_t r = 0; r < counts.size(); ++r) delays.push_back(static_cast<int>(random() % 30));
    const auto start = start_ranks(store, counts, delays);
    for (const AgreedStart& rank : start) {
      EXPECT_EQ(rank.restarts, number);
      EXPECT_EQ(rank.earlier, number);
    }
    expect_own_keys(start, std::to_string(number));
    ++counts[random() % counts.size()];
  }
}

TEST(AgreedStart, ARankThatWaitsInVainSaysSo) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  try {
    agree_on_start(store, 1, 4, 0, milliseconds(50));
    FAIL() << "nobody else came";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("not all 4 ranks reached the start"), std::string::npos) << error.what();
  }
}

TEST(StartRecord, TellsTheNextStartHowFarTheOthersCame) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  StartRecord first(store, 0);
  first.begin();
  first.note({.first_step = 1, .last_step = 12, .step_seconds = 6});
  first.note_failure();
  StartRecord second(store, 1);  // does not come to a step
  second.begin();
  second.note_failure();

  const RankLaunch launch = StartRecord(store, 2).complete({.restarts = 2});
  EXPECT_EQ(launch.restarts, 2);
  ASSERT_EQ(launch.earlier.size(), 2U);
  EXPECT_EQ(launch.earlier[0].last_step, 12);
  EXPECT_EQ(launch.earlier[0].step_seconds, 6);
  EXPECT_GE(launch.earlier[0].detect_seconds, 0);
  EXPECT_EQ(launch.earlier[1].first_step, 0);
  EXPECT_GT(launch.failed_ns, 0);
  EXPECT_LE(launch.started_ns, launch.failed_ns + 1'000'000);  // clocks of milliseconds
}

TEST(StartRecord, StartsThatDidNotBeginTheRunDoNotCount) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  StartRecord(store, 0).note_failure();  // bad input
  EXPECT_FALSE(StartRecord(store, 1).continues(1)) << "an agent started it again all the same";
  EXPECT_TRUE(StartRecord(store, 1).complete({}).earlier.empty());
  StartRecord(store, 1).begin();
  EXPECT_FALSE(StartRecord(store, 1).continues(1)) << "its own beginning is not an earlier one";
  EXPECT_TRUE(StartRecord(store, 2).continues(2));
  EXPECT_EQ(StartRecord(store, 2).complete({}).earlier.size(), 1U);
  EXPECT_TRUE(StartRecord(c10::make_intrusive<c10d::HashStore>(), 0).continues(1)) << "a store of its own";
}

TEST(StartRecord, AFirstStartHasNothingToTell) {
  const RankLaunch launch = StartRecord(c10::make_intrusive<c10d::HashStore>(), 0).complete({});
  EXPECT_TRUE(launch.earlier.empty());
  EXPECT_EQ(launch.failed_ns, 0);
}

}  // namespace
}  // namespace megalith::comm
