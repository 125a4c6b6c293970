// The line between the launcher and a rank that outlives another's failure.
#include "megalith/comm/launch/restart_link.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

namespace megalith::comm {
namespace {

TEST(RestartLink, SendsAParkedRankIntoTheNextStart) {
  auto [launcher, rank] = RestartLink::make();
  EXPECT_FALSE(launcher.take_parked());  // it still runs
  RankLaunch known;
  bool goes_on = false;
  std::thread process([&, &mine = rank] { goes_on = mine.park(known); });
  while (!launcher.take_parked()) std::this_thread::yield();
  RankLaunch next{.restarts = 2, .failed_ns = 5};
  next.earlier = {{1, 10, 2.5, 0.25}, {6, 8, 1, 0}};
  launcher.send_next_start(4711, next);
  process.join();
  EXPECT_TRUE(goes_on);
  EXPECT_EQ(known.restarts, 2);
  EXPECT_EQ(known.failed_ns, 5);
  ASSERT_EQ(known.earlier.size(), 2U);
  EXPECT_EQ(known.earlier[0].last_step, 10);
  EXPECT_EQ(known.earlier[0].step_seconds, 2.5);
  EXPECT_EQ(known.earlier[1].first_step, 6);
  EXPECT_STREQ(std::getenv("MASTER_PORT"), "4711");
  ::unsetenv("MASTER_PORT");
}

TEST(RestartLink, EndsARankWhoseLauncherIsGone) {
  auto [launcher, rank] = RestartLink::make();
  launcher = {};
  RankLaunch known;
  EXPECT_FALSE(rank.park(known));
}

}  // namespace
}  // namespace megalith::comm
