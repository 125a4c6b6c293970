// Bytes that a stage holds between a forward and its backward, against what the schedule says.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/pipeline/lattice.h"
#include "tests/support/memory_meter.h"

namespace megalith::testing {
namespace {

using layout::PipelineAction;
using layout::ScheduleKind;
using Kind = PipelineAction::Kind;

struct Held {
  int64_t one = 0;   // bytes that the first forward left behind
  int64_t most = 0;  // the most that lay between actions
};

// By rank.
std::vector<Held> measure(const SmallModel& model, const PipelineCase& how, int microbatches) {
  std::vector<Held> ranks(static_cast<size_t>(how.pp));
  run_ranks(how.pp, [&](const Rank& rank) {
    PipelineRank stage(rank, model.folder(), how);
    stage.step(equal_microbatches(microbatches, 1, 4));  // one-time allocations are done
    Held& held = ranks[static_cast<size_t>(rank.rank)];
    const MemoryMeter meter;
    int64_t before = 0;
    stage.work().watch = [&](const PipelineAction& action, bool begins) {
      if (begins && held.one == 0) before = meter.current();
      if (!begins && held.one == 0) held.one = meter.current() - before;
      held.most = std::max(held.most, meter.current());
      (void)action;
    };
    stage.step(equal_microbatches(microbatches, 4, 64));
  });
  return ranks;
}

class PipelineMemory : public ::testing::TestWithParam<ScheduleKind> {};

TEST_P(PipelineMemory, FollowsTheSchedule) {
  ReferenceConfig config = small_config(0);
  const SmallModel model(config);
  PipelineCase how{.pp = 4, .kind = GetParam()};
  if (GetParam() == ScheduleKind::kInterleaved) how.pipeline.vpp = 2;
  const int microbatches = 8;
  const auto ranks = measure(model, how, microbatches);
  const auto message = static_cast<double>(4 * 64 * config.hidden_size * 4);
  for (int rank = 0; rank < how.pp; ++rank) {
    const layout::RankSchedule schedule = layout::pipeline_schedule(
        {.kind = how.kind, .pp = how.pp, .chunks = how.chunks(), .microbatches = microbatches}, rank);
    const Held& held = ranks[static_cast<size_t>(rank)];
    const int peak = schedule.peak_in_flight();
    EXPECT_GT(static_cast<double>(held.one), 10 * message) << "rank " << rank;
    // Beside the activations: messages that come and go, two each way. A tenth: the last chunk has the loss, too.
    EXPECT_LE(static_cast<double>(held.most), 1.1 * static_cast<double>(peak * held.one) + 4 * message)
        << "rank " << rank << ", " << peak << " in flight";
    // ZB-H1 keeps less than all of a micro-batch once its backward has run; the last stage's loss is smaller than its
    // layers.
    const double least = GetParam() == ScheduleKind::kZeroBubble ? 0.5 : 0.85;
    EXPECT_GE(static_cast<double>(held.most), least * static_cast<double>(peak * held.one)) << "rank " << rank;
  }
}
INSTANTIATE_TEST_SUITE_P(Schedules, PipelineMemory,
                         ::testing::Values(ScheduleKind::kOneFOneB, ScheduleKind::kInterleaved,
                                           ScheduleKind::kZeroBubble),
                         [](const auto& test) {
                           return test.param == ScheduleKind::kOneFOneB      ? "OneFOneB"
                                  : test.param == ScheduleKind::kInterleaved ? "Interleaved"
                                                                             : "ZeroBubble";
                         });

TEST(PipelineMemoryOfOutputs, GoesBackOnceTheyAreSent) {
  const SmallModel model(small_config(0));
  const int64_t message = 4 * 64 * model.config().hidden_size * 4;
  const auto most = [&](bool free_outputs) {
    PipelineCase how{.pp = 4};
    how.engine.free_outputs = free_outputs;
    return measure(model, how, 8)[0].most;
  };
  // Four micro-batches are in flight on the first stage.
  EXPECT_GE(most(false) - most(true), 3 * message);
}

// c10 tells the end of a block that a meter never saw when an earlier one saw a block at the same address.
TEST(MemoryMeter, CountsOnlyBlocksThatItHasSeen) {
  const MemoryMeter meter;
  int unseen = 0;
  c10::reportMemoryUsageToProfiler(&unseen, -4000, 0, 0, at::kCPU);
  EXPECT_EQ(meter.current(), 0);
  const at::Tensor seen = at::empty({1000});
  EXPECT_EQ(meter.current(), 4000);
}

}  // namespace
}  // namespace megalith::testing
