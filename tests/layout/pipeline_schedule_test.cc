#include "megalith/layout/pipeline_schedule.h"

#include <gtest/gtest.h>

#include <set>

#include "megalith/base/error.h"
#include "megalith/layout/pipeline_timeline.h"
#include "tests/support/expect.h"

namespace megalith::layout {
namespace {

using testing::expect_contains;
using Kind = PipelineAction::Kind;

std::string problem(const PipelineShape& shape) {
  const auto found = problems(shape);
  return found.empty() ? "" : found[0];
}

TEST(PipelineSchedule, ProblemsNameTheNearestThatWorks) {
  const PipelineShape base{.kind = ScheduleKind::kInterleaved, .pp = 4, .chunks = 2, .microbatches = 6};
  expect_contains(problem(base), "use 8 micro-batches");
  PipelineShape few = base;
  few.microbatches = 3;
  expect_contains(problem(few), "use 4 micro-batches, or no virtual stages");
  PipelineShape group = base;
  group.microbatches = 8, group.group_size = 3;
  expect_contains(problem(group), "microbatch_group_size_per_virtual_pipeline_stage is 3");
  expect_contains(problem({.kind = ScheduleKind::kZeroBubble, .pp = 2, .chunks = 2}), "interleaved");
  expect_contains(problem({.microbatches = 0}), "0 micro-batches");
  EXPECT_THROW(pipeline_schedule(base, 0), ConfigError);
}

// Every schedule: each micro-batch passes each chunk once in each direction, and nobody waits for ever.
TEST(PipelineSchedule, EveryShapeRunsToItsEnd) {
  int shapes = 0;
  for (const ScheduleKind kind : {ScheduleKind::kOneFOneB, ScheduleKind::kZeroBubble, ScheduleKind::kInterleaved})
    for (int pp = 1; pp <= 6; ++pp)
      for (int chunks = 1; chunks <= (kind == ScheduleKind::kInterleaved ? 3 : 1); ++chunks)
        for (int m = 1; m <= 13; ++m) {
          const PipelineShape shape{.kind = kind, .pp = pp, .chunks = chunks, .microbatches = m};
          if (!problems(shape).empty()) continue;
          ++shapes;
          const PipelineTimeline timeline = pipeline_timeline(shape, {});
          for (int rank = 0; rank < pp; ++rank) {
            std::set<std::string> seen;
            for (const auto& span : timeline.ranks[static_cast<size_t>(rank)])
              EXPECT_TRUE(seen.insert(span.action.text()).second);
            EXPECT_EQ(seen.size(), static_cast<size_t>(m * chunks * (kind == ScheduleKind::kZeroBubble ? 3 : 2)));
          }
        }
  EXPECT_GT(shapes, 200);
}

TEST(PipelineSchedule, ZeroBubbleHoldsNoMoreThan1F1B) {
  for (int pp = 2; pp <= 8; ++pp)
    for (int rank = 0; rank < pp; ++rank) {
      const PipelineShape shape{.kind = ScheduleKind::kZeroBubble, .pp = pp, .microbatches = 3 * pp};
      const RankSchedule schedule = pipeline_schedule(shape, rank);
      EXPECT_LE(schedule.peak_in_flight(), pp);
      // Weight gradients stand apart: on all ranks but the first something else comes between.
      size_t apart = 0;
      for (size_t i = 1; i < schedule.actions.size(); ++i)
        if (schedule.actions[i].kind == Kind::kWeightGradient &&
            schedule.actions[i - 1].microbatch != schedule.actions[i].microbatch)
          ++apart;
      EXPECT_EQ(apart > 0, rank > 0);
    }
}

// A forward runs together with the backward of another micro-batch; the last backward of a chunk may reduce.
TEST(PipelinePairs, AreIndependentAndWhole) {
  const auto text = [](const PipelineShape& shape, int rank) {
    std::string all;
    for (const PipelineAction& a : pipeline_schedule(shape, rank).actions) all += a.text() + (a.with_next ? "+" : " ");
    return all;
  };
  const PipelineShape one{
      .kind = ScheduleKind::kNone, .microbatches = 3, .paired = true, .sync = PipelineSync::kDefault};
  EXPECT_EQ(text(one, 0), "-sync F0.0 F1.0+B0.0 F2.0+B1.0 +sync B2.0 ");
  const PipelineShape last{.kind = ScheduleKind::kInterleaved,
                           .pp = 2,
                           .chunks = 2,
                           .microbatches = 4,
                           .paired = true,
                           .sync = PipelineSync::kDefault};
  EXPECT_EQ(text(last, 1),
            "-sync F0.0 F1.0 F0.1 F1.1+B0.1 F2.0+B1.1 F3.0+B0.0 F2.1+B1.0 F3.1+B2.1 +sync B3.1 -sync B2.0 +sync B3.0"
            " -sync +sync ");
  for (const PipelineSync sync : {PipelineSync::kLeaveOut, PipelineSync::kDefault, PipelineSync::kAligned})
    for (int pp = 1; pp <= 4; ++pp)
      for (int chunks = 1; chunks <= 3; ++chunks)
        for (int m = 1; m <= 12; ++m) {
          PipelineShape shape{.kind = PipelineShape::kind_for(pp, chunks),
                              .pp = pp,
                              .chunks = chunks,
                              .microbatches = m,
                              .paired = true,
                              .sync = sync};
          if (!problems(shape).empty()) continue;
          PipelineShape alone = shape;
          alone.paired = false;
          for (int rank = 0; rank < pp; ++rank) {
            const RankSchedule pairs = pipeline_schedule(shape, rank), plain = pipeline_schedule(alone, rank);
            EXPECT_LE(pairs.peak_in_flight(), plain.peak_in_flight() + 1);
            for (size_t i = 0; i < pairs.actions.size(); ++i) {
              if (!pairs.actions[i].with_next) continue;
              ASSERT_LT(i + 1, pairs.actions.size());
              EXPECT_EQ(pairs.actions[i + 1].kind, Kind::kBackward);
              EXPECT_NE(std::pair(pairs.actions[i].microbatch, pairs.actions[i].chunk),
                        std::pair(pairs.actions[i + 1].microbatch, pairs.actions[i + 1].chunk));
            }
          }
          const double length = pipeline_timeline(shape, {}).length;
          EXPECT_DOUBLE_EQ(length, pipeline_timeline(alone, {}).length) << "pairs cost no time by themselves";
          EXPECT_LE(pipeline_timeline(shape, {.saved_by_pair = 0.5}).length, length);
        }
}

TEST(PipelinePairs, PlainOneFOneBIsRefused) {
  expect_contains(problem({.kind = ScheduleKind::kOneFOneB, .pp = 2, .microbatches = 4, .paired = true}),
                  "use virtual stages");
  expect_contains(problem({.kind = ScheduleKind::kZeroBubble, .pp = 2, .microbatches = 4, .paired = true}),
                  "zero_bubble cannot run a forward together with a backward");
}

// The bubbles of the literature, for work of equal cost: (p-1)(f+b+w) for 1F1B, 1/v of it interleaved, (p-1)(f+b-w) for
// ZB-H1.
TEST(PipelineTimeline, BubblesAreThoseOfTheory) {
  for (const int pp : {2, 4, 8})
    for (const int groups : {2, 4}) {
      const int m = pp * groups;
      const double work = 3.0 * m;
      const auto bubble = [](const PipelineShape& shape, const PipelineCosts& costs) {
        return pipeline_timeline(shape, costs).bubble_fraction;
      };
      const auto fraction = [&](double idle) { return idle / (work + idle); };
      EXPECT_NEAR(bubble({.pp = pp, .microbatches = m}, {}), fraction(3.0 * (pp - 1)), 1e-9);
      EXPECT_NEAR(bubble({.kind = ScheduleKind::kZeroBubble, .pp = pp, .microbatches = m}, {}), fraction(pp - 1), 1e-9);
      for (const int v : {2, 4}) {
        const PipelineCosts part{1.0 / v, 1.0 / v, 1.0 / v, 0};
        EXPECT_NEAR(bubble({.kind = ScheduleKind::kInterleaved, .pp = pp, .chunks = v, .microbatches = m}, part),
                    fraction(3.0 * (pp - 1) / v), 1e-9);
      }
    }
}

TEST(PipelineTimeline, TransfersTakeTime) {
  const PipelineShape shape{.pp = 4, .microbatches = 8};
  EXPECT_GT(pipeline_timeline(shape, {.transfer = 0.5}).length, pipeline_timeline(shape, {}).length);
}

}  // namespace
}  // namespace megalith::layout
