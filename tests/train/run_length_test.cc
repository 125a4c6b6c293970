// Epochs, steps and samples.
#include "megalith/train/run_length.h"

#include <gtest/gtest.h>

#include "tests/support/expect.h"

namespace megalith::testing {
namespace {

using data::EpochEnd;
using train::RunLength;

layout::MicrobatchCalculator batches(int64_t micro, int64_t dp, int64_t global) {
  return layout::MicrobatchCalculator(
      {.micro_batch_size = micro, .data_parallel_size = dp, .global_batch_size = global});
}

RunLength length(double epochs, int64_t max_steps, int64_t size, EpochEnd end = EpochEnd::kDrop) {
  train::LengthSettings run;
  run.num_train_epochs = epochs;
  run.max_steps = std::max<int64_t>(0, max_steps);
  return train::run_length(run, batches(2, 2, 8), data::Sampler({.size = size, .end = end}));
}

TEST(RunLength, CountsStepsOfEpochs) {
  EXPECT_EQ(length(3, -1, 20).max_steps, 6);  // two steps of 8 per epoch, 4 samples left out
  EXPECT_EQ(length(3, -1, 20).num_train_epochs, 3);
  EXPECT_EQ(length(3, -1, 20).samples_per_epoch, 16);
  EXPECT_EQ(length(1.25, -1, 20).max_steps, 3);  // ceil(2.5)
  EXPECT_EQ(length(1.25, -1, 20).num_train_epochs, 2);
  EXPECT_EQ(length(1, -1, 20, EpochEnd::kContinue).max_steps, 3);  // every sample at least once
  EXPECT_EQ(length(1, -1, 20, EpochEnd::kContinue).samples_per_epoch, 20);
}

TEST(RunLength, MaxStepsWin) {
  EXPECT_EQ(length(3, 5, 20).max_steps, 5);
  EXPECT_EQ(length(3, 5, 20).num_train_epochs, 3);  // ceil(5 / 2)
  EXPECT_EQ(length(3, 4, 20).num_train_epochs, 2);
  EXPECT_EQ(length(3, 1, 8).num_train_epochs, 1);
}

TEST(RunLength, SamplesMakeSteps) {
  train::LengthSettings run;
  run.train_samples = 50;
  EXPECT_EQ(train::run_length(run, batches(2, 2, 8), data::Sampler({.size = 20})).max_steps, 6);
}

TEST(RunLength, GrowingBatchesCountSamples) {
  const layout::MicrobatchCalculator ramp({.micro_batch_size = 1,
                                           .data_parallel_size = 1,
                                           .global_batch_size = 4,
                                           .rampup_batch_size = std::vector<int64_t>{2, 2, 8}});
  train::LengthSettings run;
  run.num_train_epochs = 1;
  EXPECT_EQ(train::run_length(run, ramp, data::Sampler({.size = 24})).max_steps, ramp.steps_of(24));
}

TEST(RunLength, RefusesWhatHasNoSteps) {
  expect_error<ConfigError>([] { length(1, -1, 7); }, {"a step takes 8 samples", "dataset has 7"});
  expect_error<ConfigError>([] { length(0, -1, 20); }, {"num_train_epochs is 0"});
  expect_error<ConfigError>([] { train::run_length({}, batches(2, 2, 8), std::nullopt); }, {"max_steps"});
}

TEST(RunLength, KnowsTheEpochAfterAStep) {
  const RunLength dropping = length(3, -1, 20);
  const auto step = [](int64_t epoch, int64_t consumed, bool ends) {
    return data::StepBatch{.microbatches = {}, .after = {epoch, consumed}, .samples = 8, .ends_epoch = ends};
  };
  EXPECT_EQ(dropping.epoch_after(step(0, 8, false)), 0.5);
  EXPECT_EQ(dropping.epoch_after(step(0, 16, true)), 1);
  EXPECT_EQ(dropping.epoch_after(step(1, 8, false)), 1.5);
  const RunLength exact = length(3, -1, 16);
  EXPECT_EQ(exact.epoch_after(step(1, 0, true)), 1);  // nothing is left: the position is the next epoch's
  const RunLength endless = length(3, -1, 20, EpochEnd::kContinue);
  EXPECT_EQ(endless.epoch_after(step(0, 16, false)), 0.8);
  EXPECT_EQ(endless.epoch_after(step(1, 4, true)), 1.2);
  const RunLength stream{.max_steps = 10, .num_train_epochs = 1};
  EXPECT_EQ(stream.epoch_after(step(0, 24, false)), 0.3);
}

TEST(ShapeOfStep, RefusesStepsOfNoMicrobatches) {
  const layout::MicrobatchCalculator ramp({.micro_batch_size = 2,
                                           .data_parallel_size = 2,
                                           .global_batch_size = 8,
                                           .rampup_batch_size = std::vector<int64_t>{2, 2, 12},
                                           .decrease_batch_size_if_needed = true});
  const data::ShapeOfStep shape = train::shape_of_step(ramp, 1);
  expect_error<ConfigError>([&] { shape(0); }, {"after 0 samples a step has 2 samples", "rampup_batch_size", "4"});
  EXPECT_EQ(shape(100).num_microbatches, 2);
  EXPECT_EQ(shape(100).dp_rank, 1);
}

}  // namespace
}  // namespace megalith::testing
