#include "megalith/layout/step_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"

namespace megalith::layout {
namespace {

using ::testing::HasSubstr;

std::string step_schedule_error(std::string_view text, std::optional<int64_t> seq_length = std::nullopt) {
  try {
    StepSchedule::parse(text, seq_length);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(StepSchedule, TokensBecomeSamples) {
  const StepSchedule schedule = StepSchedule::parse("0:768 250B:1536 500B:3072", 8192);
  ASSERT_EQ(schedule.steps().size(), 3U);
  EXPECT_EQ(schedule.steps()[1].from_samples, 250'000'000'000 / 8192);
  EXPECT_EQ(schedule.steps()[1].global_batch_size, 1536);
}

TEST(StepSchedule, AStepHoldsFromItsThresholdOn) {
  const StepSchedule schedule = StepSchedule::parse("0:8, 100:16", std::nullopt);
  EXPECT_EQ(schedule.batch_size_at(0), 8);
  EXPECT_EQ(schedule.batch_size_at(99), 8);
  EXPECT_EQ(schedule.batch_size_at(100), 16);
  EXPECT_EQ(schedule.batch_size_at(1'000'000), 16);
}

TEST(StepSchedule, SuffixesAndFractions) {
  const StepSchedule schedule = StepSchedule::parse("0:8 1.5k:16 2M:1K 250.3b:2K 1T:4k", std::nullopt);
  EXPECT_EQ(schedule.steps()[1].from_samples, 1500);
  EXPECT_EQ(schedule.steps()[2].from_samples, 2'000'000);
  EXPECT_EQ(schedule.steps()[2].global_batch_size, 1000);
  EXPECT_EQ(schedule.steps()[3].from_samples, 250'300'000'000);
  EXPECT_EQ(schedule.steps()[4].from_samples, 1'000'000'000'000);
}

TEST(StepSchedule, MistakesAreNamed) {
  EXPECT_THAT(step_schedule_error(""), HasSubstr("is empty"));
  EXPECT_THAT(step_schedule_error("0:8 100"), HasSubstr("the entry '100'"));
  EXPECT_THAT(step_schedule_error("0:8 100:x"), HasSubstr("the entry '100:x'"));
  EXPECT_THAT(step_schedule_error("0:0"), HasSubstr("the entry '0:0'"));
  EXPECT_THAT(step_schedule_error("0:8 0.7:16"), HasSubstr("the entry '0.7:16'"));
  EXPECT_THAT(step_schedule_error("0:8 nan:16"), HasSubstr("the entry 'nan:16'"));
  EXPECT_THAT(step_schedule_error("0:8 -5:16"), HasSubstr("the entry '-5:16'"));
  EXPECT_THAT(step_schedule_error("10:8"), HasSubstr("the first threshold must be 0"));
  EXPECT_THAT(step_schedule_error("0:8 200:16 100:32"), HasSubstr("entry 3 is 100 samples"));
  EXPECT_THAT(step_schedule_error("0:8 100:16 100:32"), HasSubstr("entry 3 is 100 samples"));
}

TEST(StepSchedule, ThresholdsMustDifferInSamples) {
  EXPECT_THAT(step_schedule_error("0:8 100:16", 4096), HasSubstr("divided by seq_length 4096"));
  EXPECT_THAT(step_schedule_error("0:8", 0), HasSubstr("seq_length is 0"));
}

}  // namespace
}  // namespace megalith::layout
