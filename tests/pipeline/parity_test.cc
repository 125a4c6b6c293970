// Loss and gradients of pipelined steps equal the reference model's.
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/model/families/family.h"
#include "tests/pipeline/lattice.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"

namespace megalith::testing {
namespace {

using layout::ScheduleKind;

std::vector<int> one_to(int last) {
  std::vector<int> counts;
  for (int i = 1; i <= last; ++i) counts.push_back(i);
  return counts;
}

// Every count up to 16 without tensor and data parallelism, which the schedules do not know of. With them: fewer than
// stages, as many, a rest, twice as many, groups of one more than stages (multiples of 3), and many.
const std::vector<int> kCounts{1, 2, 3, 4, 5, 6, 8, 9, 16};

TEST(PipelineParity, TwoStages) { expect_parity(lattice({2}, {1}, {1}, one_to(16))); }
TEST(PipelineParity, FourStages) { expect_parity(lattice({4}, {1}, {1}, one_to(16))); }
TEST(PipelineParity, TwoStagesWithTensorParallelism) { expect_parity(lattice({2}, {2}, {1}, kCounts)); }
TEST(PipelineParity, FourStagesWithTensorParallelism) { expect_parity(lattice({4}, {2}, {1}, kCounts)); }
TEST(PipelineParity, TwoStagesWithDataParallelism) { expect_parity(lattice({2}, {1}, {2}, kCounts)); }
TEST(PipelineParity, FourStagesWithDataParallelism) { expect_parity(lattice({4}, {1}, {2}, kCounts)); }
TEST(PipelineParity, TwoStagesWithBoth) { expect_parity(lattice({2}, {2}, {2}, kCounts)); }
TEST(PipelineParity, FourStagesWithBoth) { expect_parity(lattice({4}, {2}, {2}, kCounts)); }

TEST(PipelineParity, OverSockets) {
  std::vector<LatticePoint> points = lattice({2}, {1, 2}, {1}, {4});
  for (LatticePoint& point : points) point.how.gloo = true;
  expect_parity(points);
}

// Layers to stages in every way that can be asked for.
TEST(PipelineParity, UnevenStages) {
  std::vector<LatticePoint> points;
  const auto add = [&](int pp, std::optional<int> vpp, const std::function<void(config::PipelineConfig&)>& change) {
    for (int variant = 0; variant < kSmallConfigs; ++variant) {
      LatticePoint point;
      point.variant = variant;
      point.microbatches = 2 * pp;
      point.how.pp = pp;
      point.how.kind = vpp ? ScheduleKind::kInterleaved : ScheduleKind::kOneFOneB;
      point.how.pipeline.vpp = vpp;
      change(point.how.pipeline);
      points.push_back(point);
    }
  };
  add(2, {}, [](auto& p) { p.first_stage_layers = 3; });
  add(2, {}, [](auto& p) { p.last_stage_layers = 1; });
  add(4, {}, [](auto& p) { p.first_stage_layers = 1, p.last_stage_layers = 1; });
  add(3, {}, [](auto& p) { p.account_for_embedding = true; });
  add(3, {}, [](auto& p) { p.account_for_loss = true; });
  add(5, {}, [](auto& p) { p.account_for_embedding = p.account_for_loss = true; });
  add(3, {}, [](auto& p) { (void)p; });  // 8 layers over 3 stages
  add(2, 2, [](auto& p) { p.layout = "Et*3|t|ttt|tL"; });
  add(4, {}, [](auto& p) { p.layout = "E|t*4|t*4|L"; });  // embedding alone, loss alone
  add(4, {}, [](auto& p) { p.layout = "Et*4||t*4|L"; });  // a stage without anything
  add(2, 3, [](auto& p) { p.layout = "E|tt|(tt|)*3,L"; });
  expect_parity(points);
}

TEST(PipelineParity, MicrobatchCountsThatDoNotFitAreRefusedWithTheNearest) {
  const SmallModel model(small_config(0));
  PipelineCase how{.pp = 4, .kind = ScheduleKind::kInterleaved};
  how.pipeline.vpp = 2;
  const auto data = equal_microbatches(5, 1, 4);
  run_ranks(4, [&](const Rank& rank) {
    PipelineRank stage(rank, model.folder(), how);
    expect_error<ConfigError>([&] { stage.step(data); }, {"5 micro-batches", "use 4 micro-batches"});
  });
}

// Both copies of a tied embedding: the same fresh weights, the same gradient.
TEST(PipelineParity, CopiesOfATiedEmbeddingAreEqual) {
  const SmallModel model(small_config(1));
  std::vector<at::Tensor> values(2), gradients(2);
  run_ranks(2, [&](const Rank& rank) {
    PipelineRank stage(rank, model.folder(), {.pp = 2});
    stage.models().initialize_parameters(7);
    stage.step(equal_microbatches(3, 2, 5));
    for (const nn::Parameter* p : stage.models().parameters()) {
      if (!p->spec.tied_over_stages()) continue;
      values[static_cast<size_t>(rank.rank)] = p->value.detach().clone();
      gradients[static_cast<size_t>(rank.rank)] = p->grad.main_grad.clone();
    }
  });
  expect_identical(values[0], values[1], "fresh weights");
  expect_identical(gradients[0], gradients[1], "gradients");
  EXPECT_GT(gradients[0].abs().max().item<double>(), 0);
}

// bf16 between the stages: close to fp32, not equal.
TEST(PipelineParity, HalfPrecisionTransport) {
  const SmallModel model(small_config(0));
  const auto data = equal_microbatches(4, 2, 6);
  PipelineCase how{.pp = 2};
  const auto exact = model.run(data, how);
  how.engine.transport = at::kBFloat16;
  const auto rounded = model.run(data, how);
  expect_close(rounded.loss, exact.loss, "loss", 1e-2);
  EXPECT_NE(rounded.loss, exact.loss);
  for (const auto& [name, gradient] : exact.gradients) expect_close(rounded.gradients.at(name), gradient, name, 5e-2);
}

TEST(PipelineParity, ForwardOnlyGivesTheLossAndNoGradients) {
  const SmallModel model(small_config(1));
  const auto data = unequal_microbatches(8, 3);
  const double expected = model.reference(data).loss;
  for (const auto kind : {ScheduleKind::kOneFOneB, ScheduleKind::kInterleaved, ScheduleKind::kZeroBubble}) {
    PipelineCase how{.pp = 4, .kind = kind};
    if (kind == ScheduleKind::kInterleaved) how.pipeline.vpp = 2;
    run_ranks(4, [&](const Rank& rank) {
      PipelineRank stage(rank, model.folder(), how);
      expect_close(stage.evaluate(data), expected, std::string(layout::name(kind)));
      for (const nn::Parameter* p : stage.models().parameters()) EXPECT_FALSE(p->value.grad().defined());
    });
  }
}

// The same bits whatever way messages take: overlap changes when, not what.
TEST(PipelineParity, OverlapChangesNoBit) {
  const SmallModel model(small_config(0));
  const auto data = unequal_microbatches(8, 9);
  for (const auto kind : {ScheduleKind::kOneFOneB, ScheduleKind::kInterleaved}) {
    PipelineCase how{.pp = 2, .kind = kind};
    if (kind == ScheduleKind::kInterleaved) how.pipeline.vpp = 2;
    const auto plain = model.run(data, how);
    how.engine.overlap = true;
    how.engine.free_outputs = false;
    const auto overlapped = model.run(data, how);
    EXPECT_EQ(plain.loss, overlapped.loss);
    for (const auto& [name, gradient] : plain.gradients)
      expect_identical(overlapped.gradients.at(name), gradient, name);
  }
}

// Gradients are reduced while backward runs, from the second step on; each step has another number of micro-batches.
TEST(PipelineParity, SeveralStepsWithOverlappedReduction) {
  const SmallModel model(small_config(1));
  for (const auto kind : {ScheduleKind::kOneFOneB, ScheduleKind::kInterleaved, ScheduleKind::kZeroBubble}) {
    PipelineCase how{.pp = 2, .dp = 2, .kind = kind};
    how.ddp.overlap_grad_reduce = true;
    how.ddp.bucket_size = optim::BucketSize::elements(500);
    if (kind == ScheduleKind::kInterleaved) how.pipeline.vpp = 2;
    for (const auto& [sync, deferred] : {std::pair(layout::PipelineSync::kDefault, 0),
                                         {layout::PipelineSync::kAligned, 0},
                                         {layout::PipelineSync::kDefault, 2},
                                         {layout::PipelineSync::kDefault, 100},
                                         {layout::PipelineSync::kAligned, 100}}) {
      if (sync == layout::PipelineSync::kAligned && kind != ScheduleKind::kInterleaved) continue;
      if (deferred > 0 && kind == ScheduleKind::kZeroBubble) continue;
      how.sync = sync;
      how.deferred_heads = deferred;
      std::vector<SmallModel::Step> steps(3);
      std::vector<std::vector<Lengths>> data;
      for (int i = 0; i < 3; ++i) {
        steps[static_cast<size_t>(i)].gradients = whole_tensors(model::read_model_config(model.folder()));
        data.push_back(unequal_microbatches(4 * (3 - i), static_cast<uint64_t>(i)));
      }
      run_ranks(how.ranks(), [&](const Rank& rank) {
        PipelineRank stage(rank, model.folder(), how);
        for (size_t i = 0; i < 3; ++i) {
          const double loss = stage.step(data[i]);
          if (rank.rank == 0) steps[i].loss = loss;
          fill_in(steps[i].gradients, stage.models(), [](const nn::Parameter& p) { return p.grad.main_grad; });
        }
      });
      for (size_t i = 0; i < 3; ++i)
        expect_same_step(steps[i], model.reference(data[i]), fmt::format("{}, step {}", how.name(), i));
    }
  }
}

// The head's weight gradients wait until the last stage has sent its last message. Deferring all of them keeps the
// order of the sums; deferring some changes only that.
TEST(PipelineParity, DeferredHeadsGiveTheSameGradients) {
  for (const auto kind : {ScheduleKind::kOneFOneB, ScheduleKind::kInterleaved}) {
    const SmallModel model(small_config(kind == ScheduleKind::kInterleaved ? 1 : 0));
    const auto data = unequal_microbatches(4, 7);
    const SmallModel::Step reference = model.reference(data);
    for (const int chunk : {0, 8, 16}) {
      PipelineCase how{.tp = 2, .pp = 2, .sequence_parallel = true, .kind = kind};
      if (kind == ScheduleKind::kInterleaved) how.pipeline.vpp = 2;
      how.options.loss_chunk = chunk;
      how.loss_at_once = chunk == 16;
      const SmallModel::Step expected = model.run(data, how);
      for (const int deferred : {3, 100}) {
        how.deferred_heads = deferred;
        const SmallModel::Step step = model.run(data, how);
        const std::string what = fmt::format("{}, loss in chunks of {}, {} deferred", how.name(), chunk, deferred);
        expect_same_step(step, reference, what);
        if (deferred < 100) continue;
        for (const auto& [name, gradient] : expected.gradients)
          expect_identical(step.gradients.at(name), gradient, what + ", " + name);
      }
    }
  }
}

// Jobs that the engine left behind would be missing in the gradients; here they are counted as they run.
TEST(PipelineParity, DeferredHeadsRunAfterTheLastBackward) {
  const SmallModel model(small_config(0));
  PipelineCase how{.pp = 2};
  how.deferred_heads = 3;
  run_ranks(how.ranks(), [&](const Rank& rank) {
    PipelineRank stage(rank, model.folder(), how);
    std::string actions;
    stage.work().watch = [&](const layout::PipelineAction& action, bool begins) {
      if (begins) actions += action.text() + " ";
    };
    stage.step(equal_microbatches(4, 1, 4));
    const std::string first = "F0.0 F1.0 B0.0 F2.0 B1.0 F3.0 B2.0 B3.0 ";
    const std::string last = "F0.0 B0.0 F1.0 B1.0 F2.0 B2.0 F3.0 B3.0 W3.0 ";
    EXPECT_EQ(actions, rank.rank == 0 ? first : last);
  });
}

class RandomPipeline : public ::testing::TestWithParam<uint64_t> {};
TEST_P(RandomPipeline, RunsAndIsRight) { expect_random_parity(GetParam() * 10, 10); }
INSTANTIATE_TEST_SUITE_P(Seeds, RandomPipeline, ::testing::Range<uint64_t>(0, 6));

}  // namespace
}  // namespace megalith::testing
