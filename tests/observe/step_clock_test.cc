#include "megalith/observe/step_clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace megalith::observe {
namespace {

TEST(StepClock, SplitsStepsIntoWorkAndWaiting) {
  double waited = 7;  // before the first step
  StepClock clock([&] { return waited; });
  for (int step = 0; step < 2; ++step) {
    clock.begin();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    waited += 0.005;
    clock.end();
    waited += 3;  // between steps: does not count
  }
  EXPECT_EQ(clock.steps(), 2);
  const StepClock::Means means = clock.take();
  EXPECT_NEAR(means.wait, 0.005, 1e-9);
  EXPECT_GE(means.compute, 0.0149);
  EXPECT_EQ(clock.steps(), 0);
}

TEST(StepClock, WithoutACounterWaitingIsWork) {
  StepClock clock({});
  clock.begin();
  clock.end();
  EXPECT_EQ(clock.take().wait, 0);
}

}  // namespace
}  // namespace megalith::observe
