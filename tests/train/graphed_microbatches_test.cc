// Recorded micro-batches, with a stand-in for the device's graphs: what is recorded when, and that nothing of it counts
// twice. tests/cuda has the real ones.
#include "megalith/train/step/graphed_microbatches.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/base/log.h"
#include "megalith/model/families/family.h"
#include "megalith/train/device/device_graph.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/train/trainer_case.h"

namespace megalith::train {
namespace {

using testing::expect_contains;

// Like a device's graph: recording leaves no trace in `memory`, a replay does the work.
class StandInGraph : public DeviceGraph {
 public:
  explicit StandInGraph(std::vector<at::Tensor> memory) : memory_(std::move(memory)) {}
  void record(const std::function<void()>& work) override {
    std::vector<at::Tensor> before;
    for (const at::Tensor& each : memory_) before.push_back(each.clone());
    work();
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i].copy_(before[i]);
    work_ = work;
  }
  void replay() override { work_(); }

 private:
  const std::vector<at::Tensor> memory_;
  std::function<void()> work_;
};

// Records nothing.
class BrokenGraph : public DeviceGraph {
 public:
  void record(const std::function<void()>& work) override {
    work();
    throw std::runtime_error("operation not permitted when stream is capturing\nframe #0");
  }
  void replay() override {}
};

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

  at::Tensor work(const data::MicroBatch& batch) const {
    const MicrobatchLoss loss = Objective().run_head(batch, chunk_, {}, 0, Phase::kTraining);
    loss.sum.backward();
    return loss.sum.detach();
  }

  // A step of micro-batches, with graphs or without: its losses.
  std::vector<double> step(const std::vector<data::MicroBatch>& batches, GraphedMicrobatches* graphs) {
    ddp_.zero_grad();
    if (graphs) graphs->begin_step();
    std::vector<double> losses;
    for (const data::MicroBatch& each : batches) {
      const auto sum =
          graphs ? graphs->run(each, 1, [this](const data::MicroBatch& b) { return work(b); }) : std::nullopt;
      losses.push_back((sum ? *sum : work(each)).item<double>());
    }
    return losses;
  }

  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> all;
    for (const auto& buffer : ddp_.buffers()) all.push_back(buffer->grads());
    return all;
  }
  model::GptModel& chunk() { return chunk_; }
  MakeDeviceGraph stand_ins() const {
    return [this](const DeviceGraph*) { return std::make_unique<StandInGraph>(gradients()); };
  }

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
    GraphedMicrobatches graphs(r.chunk(), kWarmUpSteps, r.stand_ins());
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
    GraphedMicrobatches graphs(r.chunk(), kWarmUpSteps, r.stand_ins());
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
    GraphedMicrobatches graphs(r.chunk(), /*warm_up_steps=*/0, r.stand_ins());
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
    GraphedMicrobatches graphs(r.chunk(), kWarmUpSteps, r.stand_ins());
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

// Their shapes need not follow the lengths: a graph would keep reading those of the first micro-batch.
TEST(GraphedMicrobatches, MicrobatchesWithExtraTensorsAreNotRecorded) {
  with_model([](Recorded& r) {
    GraphedMicrobatches graphs(r.chunk(), /*warm_up_steps=*/0, r.stand_ins());
    data::MicroBatch batch = r.batch({9, 5}, 3);
    const std::vector<double> plain = r.step({batch}, nullptr);
    batch.extras["weight"] = {at::ones({batch.tokens()})};
    for (int step = 0; step < 3; ++step) EXPECT_EQ(r.step({batch, batch}, &graphs)[0], plain[0]);
    EXPECT_EQ(graphs.recorded(), 0);
  });
}

TEST(GraphedMicrobatches, ARecordingThatFailsLeavesNoTrace) {
  with_model([](Recorded& r) {
    GraphedMicrobatches graphs(r.chunk(), kWarmUpSteps,
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
  const layout::GridShape alone{.world_size = 1};
  model::ModelOptions options;
  model::ModelConfig config;
  const auto why = [&] { return graph_obstacle(options, config, alone, /*on_cuda=*/true, /*plain_objective=*/true); };
  EXPECT_EQ(why(), "");
  expect_contains(graph_obstacle(options, config, {.world_size = 2}, true, true), "2 ranks");
  expect_contains(graph_obstacle(options, config, alone, false, true), "CPU");
  expect_contains(graph_obstacle(options, config, alone, true, false), "objective");
  for (double* dropout : {&config.attention_dropout, &config.hidden_dropout, &config.embedding_dropout}) {
    *dropout = 0.1;
    expect_contains(why(), "dropout");
    *dropout = 0;
  }
  const model::ModelConfig experts = model::read_model_config(testing::golden_dir() / "hf" / "mixtral");
  expect_contains(graph_obstacle(options, experts, alone, true, true), "expert");
  options.recompute.layers = model::RecomputePlan::Layers::kUniform;
  expect_contains(why(), "recompute_granularity");
  options.recompute = {};
  options.fp8.emplace();
  expect_contains(why(), "fp8");
}

}  // namespace
}  // namespace megalith::train
