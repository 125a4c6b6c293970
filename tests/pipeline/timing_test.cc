// How long a step takes when layers only sleep: what the timeline of the schedule says. Sleeping ranks need no cores,
// so the numbers hold on a busy machine; the best of a few runs is taken.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "megalith/layout/pipeline_timeline.h"
#include "tests/pipeline/sleeping_stage.h"

namespace megalith::testing {
namespace {

using layout::PipelineShape;
using layout::ScheduleKind;
using std::chrono::microseconds;

constexpr double kUnit = 0.1;  // seconds: forward of a whole rank's layers; so each part of backward

struct Measured {
  double seconds = 1e9;
  double bubble = 0, expected_bubble = 0;
};

Measured measure(const PipelineShape& shape, bool overlap = true) {
  const double each = kUnit / shape.chunks;
  const microseconds time(static_cast<int64_t>(each * 1e6));
  const auto theory = layout::pipeline_timeline(shape, {.forward = each, .backward = each, .weight_gradient = each});
  Measured best;
  // More runs only where a busy machine has disturbed the first ones.
  for (int i = 0; i < 5 && best.seconds > 1.008 * theory.length; ++i)
    best.seconds = std::min(best.seconds, time_sleeping_step(shape, {time, time, time}, overlap));
  const double work = 3 * kUnit * shape.microbatches;
  best.bubble = 1 - work / best.seconds;
  best.expected_bubble = theory.bubble_fraction;
  fmt::print("{}: {:.3f} s (theory {:.3f}), bubble {:.1f} % (theory {:.1f})\n", layout::name(shape.kind), best.seconds,
             theory.length, 100 * best.bubble, 100 * best.expected_bubble);
  return best;
}

TEST(PipelineTiming, BubbleIsThatOfTheory) {
  const Measured plain = measure({.kind = ScheduleKind::kOneFOneB, .pp = 4, .microbatches = 8});
  const Measured interleaved = measure({.kind = ScheduleKind::kInterleaved, .pp = 4, .chunks = 2, .microbatches = 8});
  const Measured zero_bubble = measure({.kind = ScheduleKind::kZeroBubble, .pp = 4, .microbatches = 8});
  EXPECT_NEAR(plain.expected_bubble, 3.0 / 11, 1e-9);        // (pp - 1) / (m + pp - 1)
  EXPECT_NEAR(interleaved.expected_bubble, 3.0 / 19, 1e-9);  // a half of that time
  EXPECT_NEAR(zero_bubble.expected_bubble, 1.0 / 9, 1e-9);   // (pp - 1)(F + B - W)/…: a third of it
  EXPECT_NEAR(plain.bubble, plain.expected_bubble, 0.1 * plain.expected_bubble);
  EXPECT_NEAR(interleaved.bubble, interleaved.expected_bubble, 0.1 * interleaved.expected_bubble);
  EXPECT_NEAR(zero_bubble.bubble, zero_bubble.expected_bubble, 0.1 * zero_bubble.expected_bubble);
  EXPECT_NEAR(plain.seconds / interleaved.seconds, 33.0 / 28.5, 0.05);
  EXPECT_NEAR(plain.seconds / zero_bubble.seconds, 33.0 / 27, 0.05);
}

TEST(PipelineTiming, NoOverlapCostsLittleWhenMessagesAreSmall) {
  const Measured plain = measure({.kind = ScheduleKind::kOneFOneB, .pp = 2, .microbatches = 6}, /*overlap=*/false);
  EXPECT_NEAR(plain.bubble, plain.expected_bubble, 0.1);
}

}  // namespace
}  // namespace megalith::testing
