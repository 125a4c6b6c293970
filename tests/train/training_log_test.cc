// The contents of a log line.
#include "megalith/train/training_log.h"

#include <gtest/gtest.h>

#include <cmath>

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

TEST(TrainingLog, LeavesOutLossesThatAreNotNumbers) {
  TrainingLog filtered({.nan_inf_filter = true}), plain({.nan_inf_filter = false});
  StepReport bad = step(std::nan(""), 1);
  bad.update.step = {.updated = false, .grad_norm = std::nullopt, .num_zeros = std::nullopt};
  for (TrainingLog* log : {&filtered, &plain}) {
    log->add(step(2, 1), {.seconds = 1});
    log->add(bad, {.seconds = 1});
  }
  const train::MetricList line = filtered.line();
  EXPECT_EQ(line.find("loss"), 2);
  EXPECT_EQ(line.find("skipped_iter"), 1);
  EXPECT_FALSE(line.find("grad_norm"));
  EXPECT_TRUE(std::isnan(*plain.line().find("loss")));
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
