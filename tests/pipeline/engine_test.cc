// The engine that runs a schedule: deferred weight gradients, the calls that it makes to its caller, and an error on
// one stage that ends all.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/comm/world.h"
#include "tests/pipeline/lattice.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"

namespace megalith::testing {
namespace {

using layout::PipelineAction;
using layout::ScheduleKind;
using Kind = PipelineAction::Kind;

// ---- Zero bubble -----------------------------------------------------------------------------------------

// With real linear layers: a backward leaves the weights' gradients alone, the weight-gradient action makes them.
TEST(ZeroBubble, WeightGradientsRunApart) {
  const SmallModel model(small_config(0));
  run_ranks(2, [&](const Rank& rank) {
    PipelineRank stage(rank, model.folder(), {.pp = 2, .kind = ScheduleKind::kZeroBubble});
    nn::Parameter* weight = nullptr;
    for (nn::Parameter* p : stage.models().parameters())
      if (p->spec.name.ends_with("qkv.weight")) weight = p;
    ASSERT_NE(weight, nullptr);
    int backward = 0, apart = 0;
    at::Tensor before;
    bool stale = false;
    stage.work().watch = [&](const PipelineAction& action, bool begins) {
      if (begins) {
        before = weight->grad.main_grad.clone();
        stale = weight->grad.stale;
        return;
      }
      const bool same = stale == weight->grad.stale && before.equal(weight->grad.main_grad);
      if (action.kind == Kind::kWeightGradient) {
        EXPECT_FALSE(same) << action.text();
        ++apart;
      } else {
        EXPECT_TRUE(same) << action.text();
        if (action.kind == Kind::kBackward) ++backward;
      }
    };
    stage.step(equal_microbatches(5, 1, 6));
    EXPECT_EQ(backward, 5);
    EXPECT_EQ(apart, 5);
  });
}

// ---- What the engine tells its caller --------------------------------------------------------------------

TEST(PipelineEngine, OnlyTheEndsSeeTheirInputs) {
  const SmallModel model(small_config(0));
  run_ranks(4, [&](const Rank& rank) {
    PipelineCase how{.pp = 2, .dp = 2, .kind = ScheduleKind::kInterleaved};
    how.pipeline.vpp = 2;
    PipelineRank stage(rank, model.folder(), how);
    const auto forward = stage.work().forward;
    const int pp_rank = stage.context().place().pp_rank;
    std::vector<std::string> seen;
    stage.work().forward = [&](const pipeline::StageCall& call) {
      EXPECT_EQ(call.first_stage, pp_rank == 0 && call.chunk == 0);
      EXPECT_EQ(call.last_stage, pp_rank == 1 && call.chunk == 1);
      EXPECT_EQ(call.input.defined(), !call.first_stage);
      if (call.input.defined()) {
        EXPECT_TRUE(call.input.requires_grad() && call.input.is_leaf());
      }
      seen.push_back(fmt::format("{}.{}", call.microbatch, call.chunk));
      return forward(call);
    };
    stage.step(equal_microbatches(4, 1, 4));
    EXPECT_EQ(seen, (std::vector<std::string>{"0.0", "1.0", "0.1", "1.1"}));
  });
}

TEST(PipelineEngine, SynchronisationIsOnInTheLastBackwardOfAChunkOnly) {
  const SmallModel model(small_config(0));
  for (const auto kind : {ScheduleKind::kOneFOneB, ScheduleKind::kInterleaved, ScheduleKind::kZeroBubble})
    run_ranks(2, [&](const Rank& rank) {
      PipelineCase how{.pp = 2, .kind = kind};
      if (kind == ScheduleKind::kInterleaved) how.pipeline.vpp = 2;
      PipelineRank stage(rank, model.folder(), how);
      std::vector<bool> sync(static_cast<size_t>(how.chunks()), true);
      stage.work().set_sync = [&](int chunk, bool on) { sync[static_cast<size_t>(chunk)] = on; };
      std::map<int, std::vector<int>> synchronised;  // by chunk
      const Kind last = kind == ScheduleKind::kZeroBubble ? Kind::kWeightGradient : Kind::kBackward;
      stage.work().watch = [&](const PipelineAction& action, bool begins) {
        if (begins && action.kind == last && sync[static_cast<size_t>(action.chunk)])
          synchronised[action.chunk].push_back(action.microbatch);
      };
      stage.step(equal_microbatches(4, 1, 4));
      for (int chunk = 0; chunk < how.chunks(); ++chunk)
        EXPECT_EQ(synchronised[chunk], std::vector<int>{3}) << layout::name(kind) << " chunk " << chunk;
    });
}

TEST(PipelineEngine, PlansThatDoNotFitAreOurBugs) {
  const SmallModel model(small_config(0));
  run_ranks(1, [&](const Rank& rank) {
    parallel::ParallelContext context(rank.world, layout::RankGrid({.world_size = 1}));
    const pipeline::ForwardBackward engine(context, {.hidden = 4});
    expect_error<InternalError>([&] { engine.run({.shape = {.pp = 2}, .rows = {1}}, {}); },
                                {"2 pipeline stages", "1 ranks"});
    pipeline::StageWork work;
    expect_error<InternalError>(
        [&] { engine.run({.shape = {.kind = ScheduleKind::kZeroBubble, .pp = 1}, .rows = {}}, work); }, {"queue"});
  });
}

// ---- Failure ---------------------------------------------------------------------------------------------

// Returns the error of each rank when `fail` throws on one of them.
std::vector<std::string> ends_of(int ranks, const PipelineCase& how,
                                 const std::function<void(PipelineRank&, int rank)>& arm, const SmallModel& model) {
  std::vector<std::string> ends(static_cast<size_t>(ranks));
  const auto worlds = comm::World::in_process(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      comm::World& world = *worlds[static_cast<size_t>(r)];
      try {
        PipelineRank stage({r, ranks, world}, model.folder(), how);
        arm(stage, r);
        stage.step(equal_microbatches(8, 1, 4));
      } catch (const std::exception& error) {
        ends[static_cast<size_t>(r)] = error.what();
        world.report_failure(fmt::format("rank {}: {}", r, error.what()));
      }
    });
  for (std::thread& thread : threads) thread.join();
  return ends;
}

TEST(PipelineFaults, AStageThatThrowsEndsAllWithItsError) {
  const SmallModel model(small_config(0));
  for (const auto kind : {ScheduleKind::kOneFOneB, ScheduleKind::kInterleaved, ScheduleKind::kZeroBubble})
    for (const Kind where : {Kind::kForward, Kind::kBackward}) {
      PipelineCase how{.pp = 4, .kind = kind};
      how.engine.overlap = true;
      if (kind == ScheduleKind::kInterleaved) how.pipeline.vpp = 2;
      const auto begin = std::chrono::steady_clock::now();
      const auto ends = ends_of(
          4, how,
          [where](PipelineRank& stage, int rank) {
            if (rank != 2) return;
            stage.work().watch = [where](const PipelineAction& action, bool begins) {
              if (begins && action.kind == where && action.microbatch == 3)
                throw DataError("the third shard is broken");
            };
          },
          model);
      for (size_t r = 0; r < ends.size(); ++r) {
        expect_contains(ends[r], "the third shard is broken");
        if (r != 2) {
          expect_contains(ends[r], "rank 2");
        }
      }
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
    }
}

}  // namespace
}  // namespace megalith::testing
