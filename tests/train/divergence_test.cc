// The verdict on runs before a NaN, and the words about their last good steps.
#include "megalith/train/faults/divergence.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/expect.h"

namespace megalith::train {
namespace {

using testing::expect_contains;

// Ten ordinary steps, then one with these numbers.
StepHistory after(double loss, double grad_norm) {
  StepHistory history(/*parameter_norm=*/4);
  for (int64_t i = 1; i <= 10; ++i)
    history.add({.number = i, .loss = 3 - 0.1 * static_cast<double>(i), .grad_norm = 1.5, .learning_rate = 1e-3});
  history.add({.number = 11, .loss = loss, .grad_norm = grad_norm, .learning_rate = 2e-3});
  return history;
}

TEST(StepHistory, SteadyNumbersDoNotExplainANan) {
  EXPECT_FALSE(after(1.9, 1.4).growth(4.1));
  EXPECT_FALSE(after(4, 8).growth(30));  // a bad batch is not a divergence
  StepHistory one(4);
  one.add({.number = 1, .loss = 3, .grad_norm = 1, .learning_rate = 1e-3});
  EXPECT_FALSE(one.growth(4));
}

TEST(StepHistory, GrowthOfAnyKindExplainsIt) {
  expect_contains(after(950, 1).growth(4).value_or(""), "the loss had grown from 2.5 to 950");
  expect_contains(after(2, 400).growth(4).value_or(""), "the gradient norm had grown from 1.5 to 400");
  expect_contains(after(2, 1).growth(4e6).value_or(""), "the norm of the parameters had grown from 4 to 4e+06");
  expect_contains(after(2, 1).growth(NAN).value_or(""), "the parameters had become NaN");
  expect_contains(after(2, 1).growth(HUGE_VAL).value_or(""), "the parameters had become NaN, infinite");
}

TEST(StepHistory, ARunThatNeverWorkedIsNotTheFaultOfADevice) {
  expect_contains(StepHistory(4).growth(4).value_or(""), "no step since the start");
  EXPECT_EQ(StepHistory(4).last_in_words(), "none since the start");
}

TEST(StepHistory, ParametersFarTooLargeAreLost) {
  EXPECT_FALSE(StepHistory(4).is_lost(400));
  EXPECT_TRUE(StepHistory(4).is_lost(1e30));
  EXPECT_TRUE(StepHistory(4).is_lost(NAN));
  EXPECT_FALSE(StepHistory(0).is_lost(1e30));  // nothing to compare with
}

TEST(StepHistory, OldStepsAreForgotten) {
  StepHistory history(4);
  for (int64_t i = 0; i < 1000; ++i) history.add({.number = i, .loss = 9, .grad_norm = 100, .learning_rate = 1});
  for (size_t i = 0; i < StepHistory::kKept - 1; ++i) history.add({.number = 1, .loss = 1, .grad_norm = 1});
  history.add({.number = 2, .loss = 1, .grad_norm = 50, .learning_rate = 1});
  EXPECT_TRUE(history.growth(4));  // 50 is usual for the first thousand, but not for the last hundred
}

TEST(StepHistory, WordsNameTheLastGoodStepAndItsData) {
  EXPECT_EQ(after(2.5, 1.25).last_in_words(), "step 11: loss 2.5, gradient norm 1.25, learning rate 0.002");
  EXPECT_EQ(samples_in_words({3, 17, 20}, 0, 3), "samples 3, 17 and 20 of the training data (counted from 0)");
  EXPECT_EQ(samples_in_words({}, 80, 8), "samples 80 to 87 in the order of training");
}

}  // namespace
}  // namespace megalith::train
