// The contents of a log line.
#include "megalith/train/training_log.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace megalith::testing {
namespace {

using train::StepReport;
using train::TrainingLog;

StepReport step(double sum, double weight, double norm = 1) {
  StepReport report;
  report.loss = {"loss", sum, weight};
  report.update.step.grad_norm = norm;
  report.update.learning_rate = norm / 100;
  report.real_tokens = 30;
  report.tokens = 40;
  return report;
}

TEST(TrainingLog, MeansOfStepsOrOfTokens) {
  TrainingLog by_step({.per_token = false}), by_token({.per_token = true});
  for (TrainingLog* log : {&by_step, &by_token}) {
    log->add(step(30, 10), {.seconds = 1, .row_lengths = 12});
    log->add(step(2, 2, 7), {.seconds = 2, .row_lengths = 8});
  }
  const train::MetricList line = by_step.line();
  EXPECT_EQ(line.find("loss"), 2);  // (3 + 1) / 2
  EXPECT_EQ(line.find("grad_norm"), 7);
  EXPECT_EQ(line.find("learning_rate"), 0.07);
  EXPECT_EQ(line.find("token_per_sec_per_gpu"), 4);
  EXPECT_EQ(line.find("tokens_per_second"), 20);
  EXPECT_EQ(line.find("skipped_iter"), 0);
  EXPECT_EQ(line.find("num_zeros_in_grad"), 0);
  EXPECT_FALSE(line.find("loss_scale"));
  EXPECT_DOUBLE_EQ(*by_token.line().find("loss"), 32.0 / 12);
  EXPECT_EQ(by_step.steps_since_line(), 0);
  by_step.add(step(5, 1), {.seconds = 1});
  EXPECT_EQ(by_step.line().find("loss"), 5);  // only what came since
  EXPECT_EQ(by_step.mean_loss(), 3);
}

// Steps with media and without share the seconds of a line; a line without any says nothing.
TEST(TrainingLog, WorkOfTowersPerSecond) {
  TrainingLog log({});
  StepReport seeing = step(3, 1);
  seeing.tower_flops = 6e12;
  log.add(seeing, {.seconds = 1});
  log.add(step(3, 1), {.seconds = 2});
  EXPECT_EQ(log.line().find("tower_flops_per_second"), 2e12);
  log.add(step(3, 1), {.seconds = 2});
  EXPECT_FALSE(log.line().find("tower_flops_per_second"));
}

StepReport skipped(double loss) {
  StepReport report = step(loss, 1);
  report.update.step = {.updated = false, .grad_norm = std::nullopt, .num_zeros = std::nullopt};
  return report;
}

const double kNan = std::nan("");
const double kInfinity = std::numeric_limits<double>::infinity();

TEST(TrainingLog, LeavesOutLossesThatAreNotNumbers) {
  TrainingLog filtered({.nan_inf_filter = true}), plain({.nan_inf_filter = false});
  for (TrainingLog* log : {&filtered, &plain}) {
    log->add(step(2, 1), {.seconds = 1});
    log->add(skipped(kNan), {.seconds = 1});
  }
  const train::MetricList line = filtered.line();
  EXPECT_EQ(line.find("loss"), 2);
  EXPECT_EQ(line.find("skipped_iter"), 1);
  EXPECT_FALSE(line.find("grad_norm"));
  EXPECT_TRUE(std::isnan(*plain.line().find("loss")));
}

TEST(TrainingLog, CountsSkippedAndNanStepsSinceTheLastLine) {
  TrainingLog log({});
  for (const double loss : {kNan, 9.0, kInfinity}) log.add(skipped(loss), {.seconds = 1});
  log.add(step(2, 1), {.seconds = 1});  // the last step is fine; the line still tells of the others
  const train::MetricList line = log.line();
  EXPECT_EQ(line.find("skipped_iter"), 3);
  EXPECT_EQ(line.find("nan_iter"), 2);
  log.add(step(2, 1), {.seconds = 1});
  const train::MetricList next = log.line();
  EXPECT_EQ(next.find("skipped_iter"), 0);
  EXPECT_EQ(next.find("nan_iter"), 0);
}

// Megatron divides by the iterations that advanced.
TEST(TrainingLog, MeansLeaveOutSkippedSteps) {
  for (const bool per_token : {false, true}) {
    TrainingLog log({.per_token = per_token});
    StepReport good = step(2, 1), overflow = skipped(9);
    good.metrics = {{"z_loss", 3, 1}};
    overflow.metrics = {{"z_loss", 30, 1}};
    log.add(overflow, {.seconds = 1});
    log.add(good, {.seconds = 1});
    const train::MetricList line = log.line();
    EXPECT_EQ(line.find("loss"), 2);
    EXPECT_EQ(line.find("z_loss"), 3);
    EXPECT_EQ(log.mean_loss(), 2);
    // With nothing else to tell, a line tells of the skipped steps.
    log.add(overflow, {.seconds = 1});
    const train::MetricList only = log.line();
    EXPECT_EQ(only.find("loss"), 9);
    EXPECT_EQ(only.find("z_loss"), 30);
    EXPECT_EQ(only.find("skipped_iter"), 1);
    EXPECT_EQ(log.mean_loss(), 2);
  }
}

TEST(TrainingLog, AnIntervalOfNansIsNan) {
  for (const bool filter : {false, true})
    for (const bool per_token : {false, true}) {
      TrainingLog log({.per_token = per_token, .nan_inf_filter = filter});
      for (int i = 0; i < 3; ++i) log.add(skipped(kNan), {.seconds = 1});
      const train::MetricList line = log.line();
      EXPECT_TRUE(std::isnan(*line.find("loss"))) << *line.find("loss");
      EXPECT_EQ(line.find("nan_iter"), 3);
      EXPECT_TRUE(std::isnan(log.mean_loss()));
    }
}

TEST(TrainingLog, TellsTheLastStepAlone) {
  TrainingLog log({.loss_scale = true});
  StepReport second = step(6, 2, 7);
  second.metrics = {{"z_loss", 3, 2}, {"never", 0, 0}};
  second.update.loss_scale = 8;
  log.add(step(30, 10), {.seconds = 1});
  log.add(second, {.seconds = 1});
  EXPECT_EQ(
      log.last_step(),
      (train::MetricList{{"loss", 3}, {"grad_norm", 7}, {"learning_rate", 0.07}, {"loss_scale", 8}, {"z_loss", 1.5}}));
  EXPECT_EQ(log.steps_since_line(), 2);
  second.update.step.num_zeros = 4;
  log.add(second, {.seconds = 1});
  EXPECT_EQ(log.last_step().find("num_zeros_in_grad"), 4);
}

TEST(TrainingLog, SumsUpTheObjectivesMetrics) {
  TrainingLog log({});
  StepReport first = step(1, 1), second = step(1, 1);
  first.metrics = {{"rewards/accuracies", 3, 4}, {"never", 0, 0}};
  second.metrics = {{"rewards/accuracies", 1, 4}, {"never", 0, 0}};
  log.add(first, {.seconds = 1});
  log.add(second, {.seconds = 1});
  const train::MetricList line = log.line();
  EXPECT_EQ(line.find("rewards/accuracies"), 0.5);
  EXPECT_FALSE(line.find("never"));
}

}  // namespace
}  // namespace megalith::testing
