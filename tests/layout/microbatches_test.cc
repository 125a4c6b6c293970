#include "megalith/layout/microbatches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"

namespace megalith::layout {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

BatchPlan plan(std::optional<int64_t> global, int64_t micro, int64_t dp) {
  BatchPlan p;
  p.global_batch_size = global;
  p.micro_batch_size = micro;
  p.data_parallel_size = dp;
  return p;
}

BatchPlan scheduled(const char* schedule, int64_t micro, int64_t dp) {
  BatchPlan p = plan(std::nullopt, micro, dp);
  p.step_batch_size_schedule = schedule;
  return p;
}

TEST(Microbatches, UnsetGlobalBatchIsOneMicrobatchPerRank) {
  EXPECT_EQ(MicrobatchCalculator(plan(std::nullopt, 3, 4)).at(0), (BatchSizes{1, 12, 12}));
}

TEST(Microbatches, IndivisibleBatchNamesTheNearestSizes) {
  EXPECT_THAT(problems(plan(8, 2, 3)),
              ElementsAre("a global batch of 8 is not a multiple of micro_batch_size * data_parallel_size = 2 * 3 = 6, "
                          "e.g. 6 or 12; or set decrease_batch_size_if_needed"));
}

TEST(Microbatches, EveryProblemIsReported) {
  EXPECT_THAT(problems(plan(0, 0, -1)),
              ElementsAre(HasSubstr("micro_batch_size is 0"), HasSubstr("data_parallel_size is -1"),
                          HasSubstr("global_batch_size is 0")));
  BatchPlan p = plan(32, 1, 1);
  p.rampup_batch_size = {-8, 0, 0};
  EXPECT_THAT(problems(p), ElementsAre(HasSubstr("the start of rampup_batch_size is -8"), HasSubstr("the increment"),
                                       HasSubstr("the number of samples")));
}

TEST(Microbatches, ScheduleFollowsConsumedSamples) {
  const MicrobatchCalculator calculator(scheduled("0:8 100:16", 2, 2));
  EXPECT_EQ(calculator.final_global_batch_size(), 16);
  EXPECT_EQ(calculator.at(96), (BatchSizes{2, 8, 8}));
  EXPECT_EQ(calculator.at(104), (BatchSizes{4, 16, 16}));
}

// An early entry may be too small for the ranks of today: only the present one counts.
TEST(Microbatches, ScheduleIsCheckedWhereItIsUsed) {
  const MicrobatchCalculator calculator(scheduled("0:8 100:64", 2, 8));
  EXPECT_EQ(calculator.unchecked_at(0), (BatchSizes{0, 8, 8}));
  EXPECT_THROW(calculator.at(0), ConfigError);
  EXPECT_EQ(calculator.at(100), (BatchSizes{4, 64, 64}));
}

TEST(Microbatches, ScheduleExcludesTheOtherWays) {
  BatchPlan p = scheduled("0:8", 1, 1);
  p.global_batch_size = 8;
  p.rampup_batch_size = {1, 1, 1};
  p.decrease_batch_size_if_needed = true;
  EXPECT_THAT(problems(p),
              ElementsAre(HasSubstr("step_batch_size_schedule and global_batch_size"),
                          HasSubstr("and rampup_batch_size"), HasSubstr("and decrease_batch_size_if_needed")));
}

TEST(Microbatches, ARefusedMomentSaysWhen) {
  BatchPlan p = plan(12, 2, 2);
  p.rampup_batch_size = {6, 2, 30};
  const MicrobatchCalculator calculator(p);
  try {
    calculator.at(20);
    FAIL() << "not refused";
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), HasSubstr("after 20 samples: a global batch of 10"));
  }
  EXPECT_EQ(calculator.at(30), (BatchSizes{3, 12, 12}));
}

// The reference's loop, word for word: every step that starts in the ramp, then whole steps.
int64_t steps_by_walking(const MicrobatchCalculator& calculator, int64_t ramp_end, int64_t samples) {
  int64_t steps = 0;
  int64_t consumed = 0;
  while (consumed <= ramp_end && consumed <= samples) {
    consumed += calculator.unchecked_at(consumed).global_batch_size;
    ++steps;
  }
  return samples > consumed ? steps + (samples - consumed) / calculator.final_global_batch_size() : steps;
}

TEST(Microbatches, steps_of_a_run_in_samples) {
  BatchPlan plan;
  plan.global_batch_size = 8;
  EXPECT_EQ(MicrobatchCalculator(plan).steps_of(1003), 125);
  EXPECT_EQ(MicrobatchCalculator(plan).steps_of(7), 0);
  EXPECT_FALSE(MicrobatchCalculator(plan).next_change(0));

  plan.global_batch_size = 32;
  plan.rampup_batch_size = {8, 8, 100};
  const MicrobatchCalculator ramp(plan);
  for (int64_t samples = 0; samples < 400; ++samples)
    EXPECT_EQ(ramp.steps_of(samples), steps_by_walking(ramp, 100, samples)) << samples;

  BatchPlan stepwise;
  stepwise.step_batch_size_schedule = "0:4 50:6 90:2";
  const MicrobatchCalculator schedule(stepwise);
  for (int64_t samples = 0; samples < 200; ++samples)
    EXPECT_EQ(schedule.steps_of(samples), steps_by_walking(schedule, 89, samples)) << samples;
}

TEST(Microbatches, the_next_change_is_where_the_size_first_differs) {
  BatchPlan plan;
  plan.global_batch_size = 32;
  plan.rampup_batch_size = {8, 8, 100};
  BatchPlan stepwise;
  stepwise.step_batch_size_schedule = "0:4 50:6 90:2";
  for (const BatchPlan& any : {plan, stepwise}) {
    const MicrobatchCalculator calculator(any);
    for (int64_t consumed = 0; consumed < 150; ++consumed) {
      const auto size = [&](int64_t at) { return calculator.unchecked_at(at).global_batch_size; };
      int64_t other = consumed + 1;
      while (other < 150 && size(other) == size(consumed)) ++other;
      EXPECT_EQ(calculator.next_change(consumed).value_or(150), other) << consumed;
    }
  }
}

}  // namespace
}  // namespace megalith::layout
