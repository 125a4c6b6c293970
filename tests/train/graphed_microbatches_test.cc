// Recorded micro-batches, with a stand-in for the device's graphs: what is recorded when, and that nothing of it counts
// twice. tests/cuda has the real ones.
#include "megalith/train/step/graphed_microbatches.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/base/log.h"
#include "megalith/model/families/family.h"
#include "megalith/train/device/device_graph.h"
#include "megalith/train/step/graph_recorder.h"
#include "megalith/train/step/recorded_batch.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/train/graph_case.h"
#include "tests/train/trainer_case.h"

namespace megalith::train {
namespace {

using testing::BrokenGraph;
using testing::expect_contains;

// A small llama on one rank with gradient buffers.
class Recorded {
 public:
  explicit Recorded(const testing::TrainerRank& rank)
      : rank_(rank), chunk_(rank.models[0]), ddp_(parameters(), {}, rank.models.context()) {}

  data::MicroBatch batch(std::vector<int64_t> lengths, int32_t first_id) const {
    std::vector<data::Sample> samples;
    for (const int64_t length : lengths) {
      data::Sequence sequence;
      for (int64_t i = 0; i < length; ++i)
        sequence.labels.push_back(sequence.ids.emplace_back(static_cast<int32_t>((first_id + 5 * i) % 60)));
      samples.push_back({sequence, {}});
    }
    return rank_.collator.collate(samples);
  }

  MicrobatchLoss work(const data::MicroBatch& batch) const {
    MicrobatchLoss loss = Objective().run_head(batch, chunk_, {}, 0, Phase::kTraining);
    loss.sum.backward();
    loss.sum = loss.sum.detach();
    return loss;
  }

  // A step of micro-batches, with graphs or without: its losses.
  std::vector<double> step(const std::vector<data::MicroBatch>& batches, GraphedMicrobatches* graphs) {
    ddp_.zero_grad();
    if (graphs) graphs->begin_step();
    std::vector<double> losses;
    for (const data::MicroBatch& each : batches) {
      const auto loss =
          graphs ? graphs->run(each, {1}, [this](const data::MicroBatch& b) { return work(b); }) : std::nullopt;
      losses.push_back((loss ? *loss : work(each)).value());
    }
    return losses;
  }

  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> all;
    for (const auto& buffer : ddp_.buffers()) all.push_back(buffer->grads());
    return all;
  }
  model::GptModel& chunk() { return chunk_; }
  MakeDeviceGraph stand_ins() { return testing::stand_ins({{&ddp_}, rank_.models}); }

 private:
  std::vector<nn::Parameter*> parameters() const {
    std::vector<nn::Parameter*> all;
    for (const auto& parameter : chunk_.parameters().all()) all.push_back(parameter.get());
    return all;
  }

  const testing::TrainerRank& rank_;
  model::GptModel& chunk_;
  optim::DistributedDataParallel ddp_;
};

constexpr int kWarmUpSteps = 3;

void with_model(const std::function<void(Recorded&)>& body) {
  testing::run_trainer_ranks(testing::golden_folder("llama"), {}, [&](const testing::TrainerRank& rank) {
    Recorded recorded(rank);
    body(recorded);
  });
}

TEST(GraphedMicrobatches, FirstAndFurtherMicrobatchesGiveTheSameGradients) {
  with_model([](Recorded& r) {
    GraphedMicrobatches graphs(r.chunk(), kWarmUpSteps, nullptr, r.stand_ins());
    for (int step = 1; step <= 7; ++step) {
      SCOPED_TRACE(step);
      const std::vector<data::MicroBatch> batches{r.batch({7, 7}, step), r.batch({7, 7}, 3 * step),
                                                  r.batch({7, 7}, 11)};
      const std::vector<double> expected = r.step(batches, nullptr);
      const at::Tensor gradients = r.gradients()[0].clone();
      EXPECT_EQ(r.step(batches, &graphs), expected);
      testing::expect_identical(r.gradients()[0], gradients, "gradients");
      EXPECT_EQ(graphs.recorded(), step > kWarmUpSteps ? 2 : 0);
    }
  });
}

// With log_level debug a run tells when it records.
TEST(GraphedMicrobatches, ARecordingIsLogged) {
  with_model([](Recorded& r) {
    GraphedMicrobatches graphs(r.chunk(), kWarmUpSteps, nullptr, r.stand_ins());
    set_log_level("debug");
    ::testing::internal::CaptureStderr();
    for (int step = 0; step < kWarmUpSteps + 2; ++step) r.step({r.batch({7, 7}, step)}, &graphs);
    const std::string said = ::testing::internal::GetCapturedStderr();
    set_log_level("info");
    expect_contains(said, "recorded a graph of a micro-batch of 12 tokens in step 4 of this run");
    EXPECT_EQ(said.find("in step 5"), std::string::npos) << said;
  });
}

TEST(GraphedMicrobatches, WithoutWarmUpTheSecondMicrobatchIsRecorded) {
  with_model([](Recorded& r) {
    GraphedMicrobatches graphs(r.chunk(), /*warm_up_steps=*/0, nullptr, r.stand_ins());
    const std::vector<data::MicroBatch> batches{r.batch({7, 7}, 1), r.batch({7, 7}, 2)};
    const std::vector<double> expected = r.step(batches, nullptr);
    EXPECT_EQ(r.step(batches, &graphs), expected);
    EXPECT_EQ(graphs.recorded(), 1);  // gradients that are added to
    EXPECT_EQ(r.step(batches, &graphs), expected);
    EXPECT_EQ(graphs.recorded(), 2);
  });
}

TEST(GraphedMicrobatches, AShapeIsRecordedWhenItComesAgain) {
  with_model([](Recorded& r) {
    GraphedMicrobatches graphs(r.chunk(), kWarmUpSteps, nullptr, r.stand_ins());
    for (int step = 0; step < kWarmUpSteps; ++step) r.step({r.batch({5}, 1)}, &graphs);
    r.step({r.batch({9}, 1)}, &graphs);
    EXPECT_EQ(graphs.recorded(), 0);
    r.step({r.batch({9}, 2)}, &graphs);
    EXPECT_EQ(graphs.recorded(), 1);
    // No more than that many shapes, and those that are recorded stay.
    for (int64_t length = 10; length < 20; ++length)
      for (int again = 0; again < 2; ++again) {
        const auto batch = r.batch({length}, again);
        const auto expected = r.step({batch}, nullptr);
        EXPECT_EQ(r.step({batch}, &graphs), expected);
      }
    EXPECT_EQ(graphs.recorded(), GraphedMicrobatches::kMostShapes);
    EXPECT_EQ(r.step({r.batch({9}, 30)}, &graphs), r.step({r.batch({9}, 30)}, nullptr));
  });
}

// A graph reads the extra tensors of each micro-batch, and belongs to their sizes.
TEST(GraphedMicrobatches, ExtraTensorsAreReplaced) {
  with_model([](Recorded& r) {
    GraphedMicrobatches graphs(r.chunk(), /*warm_up_steps=*/0, nullptr, r.stand_ins());
    const auto weighted = [&](const data::MicroBatch& batch) {
      MicrobatchLoss loss = r.work(batch);
      loss.sum = loss.sum * batch.extra("weight", at::kCPU).sum();
      return loss;
    };
    graphs.begin_step();
    for (int i = 1; i <= 4; ++i) {
      data::MicroBatch batch = r.batch({9, 5}, i);
      batch.extras["weight"] = {at::full({2}, i, at::kFloat), data::ExtraOf::kRows};
      const double expected = weighted(batch).value();
      const auto replayed = graphs.run(batch, {1}, weighted);
      EXPECT_EQ(replayed.has_value(), i > 1);
      if (i > 1) {
        EXPECT_EQ(replayed->value(), expected);
      }
    }
    EXPECT_EQ(graphs.recorded(), 1);
    data::MicroBatch longer = r.batch({9, 5}, 1);
    longer.extras["weight"] = {at::ones({3}), data::ExtraOf::kBatch};
    EXPECT_FALSE(graphs.run(longer, {1}, weighted));
  });
}

// Rotary angles are computed from positions before a graph is recorded.
TEST(GraphedMicrobatches, EqualLengthsAtOtherPositionsAreAnotherShape) {
  with_model([](Recorded& r) {
    GraphedMicrobatches graphs(r.chunk(), /*warm_up_steps=*/0, nullptr, r.stand_ins());
    const data::MicroBatch plain = r.batch({9}, 1);
    data::MicroBatch restarted = plain;
    at::Tensor positions = plain.layout.positions(at::kCPU).clone();
    positions.narrow(0, 4, positions.size(0) - 4).sub_(4);
    restarted.layout = plain.layout.with_positions(positions);
    const double expected = r.step({plain}, nullptr)[0], other = r.step({restarted}, nullptr)[0];
    EXPECT_NE(expected, other);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(r.step({plain}, &graphs)[0], expected);
      EXPECT_EQ(r.step({restarted}, &graphs)[0], other);
    }
    EXPECT_EQ(graphs.recorded(), 2);
    data::MicroBatch padded = plain;  // its last tokens do not count; angles are the same
    padded.layout = plain.layout.with_max_position(5);
    EXPECT_EQ(r.step({padded}, &graphs)[0], expected);
    EXPECT_EQ(graphs.recorded(), 2);
  });
}

TEST(RecordedBatch, IsReadWhereItWasFirst) {
  with_model([](Recorded& r) {
    const data::MicroBatch first = r.batch({9, 5}, 1), second = r.batch({9, 5}, 2);
    EXPECT_EQ(BatchKey(first, {1}), BatchKey(second, {1}));
    EXPECT_NE(BatchKey(first, {1}), BatchKey(second, {2}));
    EXPECT_NE(BatchKey(first, {1}), BatchKey(r.batch({7, 5}, 1), {1}));
    RecordedBatch recorded(first, first.layout, at::kCPU);
    const void* ids = recorded.batch().ids.const_data_ptr();
    recorded.load(second);
    EXPECT_EQ(recorded.batch().ids.const_data_ptr(), ids);
    testing::expect_identical(recorded.batch().ids, second.ids, "ids");
    testing::expect_identical(recorded.batch().labels, second.labels, "labels");
  });
}

// A recording changes neither flags nor memory; a replay does what the pass did.
TEST(GraphRecorder, ReplaysTheEffectsOfAPassOnTheHost) {
  with_model([](Recorded& r) {
    GraphRecorder recorder({&r.chunk()}, nullptr, r.stand_ins());
    const data::MicroBatch batch = r.batch({7, 7}, 1);
    r.step({batch}, nullptr);
    const at::Tensor once = r.gradients()[0].clone();
    const std::vector<bool> after = recorder.stale();
    const auto graph = recorder.record([&] { r.work(batch); });
    ASSERT_TRUE(graph);
    EXPECT_EQ(recorder.stale(), graph->before);
    testing::expect_identical(r.gradients()[0], once, "gradients");
    recorder.replay(*graph);
    EXPECT_EQ(recorder.stale(), after);
    testing::expect_identical(r.gradients()[0], once * 2, "gradients");
    EXPECT_TRUE(recorder.usable());
    EXPECT_TRUE(recorder.settled());
    EXPECT_EQ(recorder.recorded(), 1);
  });
}

// Ranks that share collectives record together or not at all.
TEST(GraphedMicrobatches, AFailureOfAnotherRankEndsGraphs) {
  with_model([](Recorded& r) {
    int asked = 0;
    const auto agree = [&asked](bool mine) {
      EXPECT_TRUE(mine);
      return ++asked == 1;
    };
    GraphedMicrobatches graphs(r.chunk(), /*warm_up_steps=*/0, agree, r.stand_ins());
    const std::vector<data::MicroBatch> batches{r.batch({7, 7}, 1), r.batch({7, 7}, 2)};
    const std::vector<double> expected = r.step(batches, nullptr);
    const at::Tensor gradients = r.gradients()[0].clone();
    ::testing::internal::CaptureStderr();
    for (int step = 0; step < 4; ++step) EXPECT_EQ(r.step(batches, &graphs), expected);
    expect_contains(::testing::internal::GetCapturedStderr(), "(another rank failed)");
    testing::expect_identical(r.gradients()[0], gradients, "gradients");
    EXPECT_EQ(graphs.recorded(), 1);
    EXPECT_EQ(asked, 2);
  });
}

TEST(GraphedMicrobatches, ARecordingThatFailsLeavesNoTrace) {
  with_model([](Recorded& r) {
    GraphedMicrobatches graphs(r.chunk(), kWarmUpSteps, nullptr,
                               [](const DeviceGraph*) { return std::make_unique<BrokenGraph>(); });
    const std::vector<data::MicroBatch> batches{r.batch({7, 7}, 1), r.batch({7, 7}, 2)};
    const std::vector<double> expected = r.step(batches, nullptr);
    const at::Tensor gradients = r.gradients()[0].clone();
    ::testing::internal::CaptureStderr();
    for (int step = 0; step < kWarmUpSteps + 2; ++step) EXPECT_EQ(r.step(batches, &graphs), expected);
    const std::string said = ::testing::internal::GetCapturedStderr();
    testing::expect_identical(r.gradients()[0], gradients, "gradients");
    EXPECT_EQ(graphs.recorded(), 0);
    expect_contains(said, "operation not permitted when stream is capturing)");
    expect_contains(said, "continues without graphs");
  });
}

TEST(GraphedMicrobatches, ObstaclesAreNamed) {
  GraphRun run{.grid = {}, .on_cuda = true, .nccl = true, .recordable_loss = true};
  model::ModelOptions options;
  model::ModelConfig config;
  const auto why = [&] { return graph_obstacle(options, config, run); };
  EXPECT_EQ(why(), "");
  run.grid = {.world_size = 8, .tp = 2, .cp = 2};
  EXPECT_EQ(why(), "");
  run.nccl = false;
  expect_contains(why(), "NCCL");
  run.grid = {.world_size = 8};  // data-parallel ranks exchange nothing within a graph
  EXPECT_EQ(why(), "");
  run.grid = {.world_size = 8, .pp = 2};
  run.schedule = layout::ScheduleKind::kOneFOneB;
  EXPECT_EQ(why(), "");
  run.defers_heads = true;
  expect_contains(why(), "defer_embedding_wgrad_compute");
  run.schedule = layout::ScheduleKind::kZeroBubble;
  expect_contains(why(), "zero-bubble");
  run.on_cuda = false;
  expect_contains(why(), "CPU");
  run = {.grid = {}, .on_cuda = true, .nccl = true, .recordable_loss = false};
  expect_contains(why(), "objective");
  run.recordable_loss = true;
  for (double* dropout : {&config.attention_dropout, &config.hidden_dropout, &config.embedding_dropout}) *dropout = 0.1;
  EXPECT_EQ(why(), "");
  run.records_draws = false;
  expect_contains(why(), "libtorch");
  run.records_draws = true;
  options.neftune_alpha = 5;
  expect_contains(why(), "neftune_noise_alpha");
  options.neftune_alpha = 0;
  options.recompute.layers = model::RecomputePlan::Layers::kUniform;
  options.fp8.emplace();
  EXPECT_EQ(why(), "");
  options.offload.num_layers = 1;
  expect_contains(why(), "cpu_offloading");
}

TEST(GraphedMicrobatches, ObstaclesOfExpertsAreNamed) {
  GraphRun run{.grid = {}, .on_cuda = true, .nccl = true, .recordable_loss = true};
  model::ModelOptions options;
  model::ModelConfig experts = model::read_model_config(testing::golden_dir() / "hf" / "mixtral");
  const auto why = [&] { return graph_obstacle(options, experts, run); };
  expect_contains(why(), "bf16");
  options.dtype = at::kBFloat16;
  experts.moe->router.losses = {{.kind = nn::BalanceLoss::Kind::kBatch, .coeff = 0.01}};
  EXPECT_EQ(why(), "");
  run.grid = {.world_size = 2};  // each data-parallel rank has all experts
  EXPECT_EQ(why(), "");
  run.grid = {.world_size = 2, .ep = 2};
  expect_contains(why(), "other ranks");
  run.grid = {};
  experts.moe->router.losses[0].kind = nn::BalanceLoss::Kind::kSequence;
  expect_contains(why(), "seq_aux_loss");
  experts.moe->router.losses[0].kind = nn::BalanceLoss::Kind::kGlobal;
  expect_contains(why(), "global_aux_loss");
  experts.moe->router.losses.clear();
  experts.moe->router.capacity_factor = 1.0;
  expect_contains(why(), "moe_expert_capacity_factor");
  experts.moe->router.capacity_factor.reset();
  experts.moe->router.jitter = 0.1;
  EXPECT_EQ(why(), "");
}

}  // namespace
}  // namespace megalith::train
