// Whole steps with recorded micro-batches, on several ranks and with everything that a graph may hold: the losses, the
// metrics and the parameters of the same steps without graphs, bit for bit. With a stand-in for the device's graphs;
// tests/cuda and tests/nccl have the real ones.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <mutex>

#include "megalith/base/log.h"
#include "megalith/config/derive.h"
#include "megalith/run/resolve/schedule.h"
#include "megalith/run/resolve/trainer_settings.h"
#include "megalith/train/step/graphed_stages.h"
#include "megalith/train/train_step.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/train/graph_case.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

constexpr int kStepsOfARun = 4;

// The state of a rank after some steps.
struct RankEnd {
  std::vector<double> numbers;  // losses and metrics of all steps
  std::vector<at::Tensor> parameters;
  int graphs = 0;
};

// A layout, a model and options; `graphs` is the number that each rank records.
struct GraphedCase {
  TrainerCase how;
  std::string family = "llama";
  int microbatches = 2;
  int graphs = 2;
  int shorter = -1;  // a micro-batch with shorter rows
};

// Rows of equal length, different on every data-parallel rank and in every micro-batch of every step.
data::MicroBatch rows(const TrainerRank& rank, int64_t vocab, int step, int microbatch, int length) {
  std::vector<data::Sample> samples;
  for (int row = 0; row < 2; ++row) {
    data::Sequence sequence;
    for (int i = 0; i < length; ++i) {
      const int64_t id = 1 + 7 * i * (row + 1) + 3 * step + 5 * microbatch + 11 * rank.models.context().place().dp_rank;
      sequence.labels.push_back(sequence.ids.emplace_back(static_cast<int32_t>(id % vocab)));
    }
    samples.push_back({sequence, {}});
  }
  return rank.collator.collate(samples);
}

// Makes the graphs of a rank.
using GraphsOfRank = std::function<train::MakeDeviceGraph(const GraphSurroundings& around, int rank)>;

// Without graphs if `make` is empty.
RankEnd run_steps(const TrainerRank& rank, const GraphedCase& that, const GraphsOfRank& make) {
  parallel::ParallelContext& context = rank.models.context();
  train::RerunGuard guard(run::rerun_settings(rank.args), {}, context);
  train::OptimizedModel model(
      rank.models, run::update_settings(rank.args),
      run::make_schedule(rank.args, layout::MicrobatchCalculator(config::batch_plan(rank.args, that.how.dp)),
                         kStepsOfARun),
      context);
  train::Objective objective;
  TraceRecorder trace;
  train::MicrobatchRunner runner(rank.models, run::step_settings(rank.args), context, objective, trace);
  guard.watch(model);
  if (make) runner.use_graphs(make({model.chunks(), rank.models}, rank.rank.rank));
  RankEnd end;
  for (int step = 0; step < kStepsOfARun; ++step) {
    data::StepBatch batch;
    batch.samples = 2 * that.microbatches * that.how.dp;
    for (int m = 0; m < that.microbatches; ++m)
      batch.microbatches.push_back(rows(rank, rank.models.config().vocab_size, step, m, m == that.shorter ? 9 : 17));
    const train::StepReport report = train::train_step(model, runner, guard, batch, step + 1, nullptr, {});
    end.numbers.push_back(report.loss.sum);
    for (const train::MetricTotal& total : report.metrics) end.numbers.push_back(total.mean());
  }
  model.finish_param_gather();
  for (const auto& chunk : rank.models)
    for (const auto& parameter : chunk->parameters().all()) end.parameters.push_back(parameter->value.detach().clone());
  end.graphs = runner.recorded_graphs();
  return end;
}

std::vector<RankEnd> run_case(const GraphedCase& that, const GraphsOfRank& make = {}) {
  std::vector<RankEnd> ends(static_cast<size_t>(that.how.ranks()));
  std::mutex mutex;
  run_trainer_ranks(golden_folder(that.family), that.how, [&](const TrainerRank& rank) {
    RankEnd end = run_steps(rank, that, make);
    const std::lock_guard lock(mutex);
    ends[static_cast<size_t>(rank.rank.rank)] = std::move(end);
  });
  return ends;
}

void expect_equal_ends(const std::vector<RankEnd>& found, const std::vector<RankEnd>& expected) {
  for (size_t rank = 0; rank < expected.size(); ++rank) {
    SCOPED_TRACE(fmt::format("rank {}", rank));
    EXPECT_EQ(found[rank].numbers, expected[rank].numbers);
    for (size_t i = 0; i < expected[rank].parameters.size(); ++i)
      expect_identical(found[rank].parameters[i], expected[rank].parameters[i], fmt::format("parameter {}", i));
  }
}

// Recording starts with the second step.
GraphedCase graphed(TrainerCase how, const std::function<void(config::TrainingArguments&)>& change = {}) {
  how.args.fusion.cuda_graph_warmup_steps = 1;
  if (change) change(how.args);
  return {.how = std::move(how)};
}

void expect_graphs_change_nothing(const GraphedCase& that) {
  SCOPED_TRACE(that.how.name);
  const auto make = [](const GraphSurroundings& around, int /*rank*/) { return stand_ins(around); };
  const std::vector<RankEnd> graphs = run_case(that, make);
  expect_equal_ends(graphs, run_case(that));
  for (const RankEnd& end : graphs) EXPECT_EQ(end.graphs, that.graphs);
}

void share_optimizer(config::TrainingArguments& args) { args.optimizer.use_distributed_optimizer = true; }
void overlap_reductions(config::TrainingArguments& args) {
  args.ddp.overlap_grad_reduce = true;
  args.ddp.bucket_size = 6000;
}
void overlap_all(config::TrainingArguments& args) {
  share_optimizer(args);
  overlap_reductions(args);
  args.ddp.overlap_param_gather = true;
}

TEST(GraphedSteps, OfDataParallelRanks) {
  expect_graphs_change_nothing(graphed({.name = "dp 2", .dp = 2}));
  expect_graphs_change_nothing(graphed({.name = "dp 2, sharded", .dp = 2}, share_optimizer));
}

// With three micro-batches the first two are recorded, or the second alone.
TEST(GraphedSteps, LeaveOutMicrobatchesThatCommunicate) {
  GraphedCase that = graphed({.name = "dp 2, reductions overlap", .dp = 2}, overlap_reductions);
  that.microbatches = 3;
  that.graphs = 2;  // the first overwrites gradients, the second adds
  expect_graphs_change_nothing(that);
  that = graphed({.name = "dp 2, gathers overlap, too", .dp = 2}, overlap_all);
  that.microbatches = 3;
  that.graphs = 1;
  expect_graphs_change_nothing(that);
}

TEST(GraphedSteps, SayWhenOverlapLeavesNoMicrobatch) {
  GraphedCase that = graphed({.dp = 2}, overlap_all);
  that.graphs = 0;
  ::testing::internal::CaptureStderr();
  expect_graphs_change_nothing(that);
  const std::string said = ::testing::internal::GetCapturedStderr();
  expect_contains(said,
                  "is not used in steps of 2 micro-batch(es): overlap_grad_reduce takes the last one and"
                  " overlap_param_gather the first");
}

TEST(GraphedSteps, OfTensorAndContextParallelRanks) {
  expect_graphs_change_nothing(graphed({.name = "tp 2", .tp = 2}));
  expect_graphs_change_nothing(
      graphed({.name = "tp 2, sequences split", .tp = 2}, [](auto& args) { args.parallel.sequence_parallel = true; }));
  expect_graphs_change_nothing(graphed({.name = "cp 2", .cp = 2}));
  expect_graphs_change_nothing(graphed({.name = "tp 2, dp 2", .tp = 2, .dp = 2}, share_optimizer));
}

TEST(GraphedSteps, WithRecomputedLayers) {
  expect_graphs_change_nothing(graphed({.name = "recompute"}, [](auto& args) {
    args.recompute.granularity = config::RecomputeGranularity::kFull;
    args.recompute.method = config::RecomputeMethod::kUniform;
  }));
}

// Dropout of every kind. A step draws on from where the one before has ended.
void drop_everywhere(config::TrainingArguments& args) {
  args.layer.hidden_dropout = 0.2;
  args.layer.attention_dropout = 0.1;
}
void drop_and_recompute(config::TrainingArguments& args) {
  drop_everywhere(args);
  args.recompute.granularity = config::RecomputeGranularity::kFull;
  args.recompute.method = config::RecomputeMethod::kUniform;
}
void drop_before_adapters(config::TrainingArguments& args) {
  args.run.finetuning_type = config::FinetuningType::kLora;
  args.lora.rank = 4;
  args.lora.dropout = 0.1;
}

TEST(GraphedSteps, WithDropout) {
  EXPECT_NE(run_case(graphed({}, drop_everywhere))[0].numbers, run_case(graphed({}))[0].numbers);
  expect_graphs_change_nothing(graphed({.name = "dropout"}, drop_everywhere));
  expect_graphs_change_nothing(graphed({.name = "dropout, recompute"}, drop_and_recompute));
  expect_graphs_change_nothing(graphed({.name = "dropout, lora"}, drop_before_adapters));
  expect_graphs_change_nothing(graphed({.name = "dropout, tp 2", .tp = 2}, [](auto& args) {
    drop_everywhere(args);
    args.parallel.sequence_parallel = true;
  }));
}

// Routers count on the host: loads, losses and spread are among the metrics.
TEST(GraphedSteps, WithExperts) {
  GraphedCase that = graphed({.name = "experts", .dp = 2});
  that.family = "mixtral";
  expect_graphs_change_nothing(that);
}

// The first step has no scales yet, so it is not recorded even without a warm-up.
TEST(GraphedSteps, WithDelayedFp8Scales) {
  GraphedCase that = graphed({.name = "fp8"}, [](auto& args) {
    args.precision.bf16 = true;
    args.precision.fp8 = config::Fp8Format::kHybrid;
    args.precision.fp8_recipe = "delayed";
    args.fusion.cuda_graph_warmup_steps = 0;
  });
  expect_graphs_change_nothing(that);
}

// With several stages, ranks have as many slots of two graphs as recorded micro-batches are in flight at the same time,
// which is a matter of the stage.
void expect_stages_change_nothing(GraphedCase that, const std::vector<int>& slots) {
  SCOPED_TRACE(that.how.name);
  that.microbatches = 4;
  const auto make = [](const GraphSurroundings& around, int /*rank*/) { return stand_ins(around); };
  const std::vector<RankEnd> found = run_case(that, make);
  expect_equal_ends(found, run_case(that));
  for (size_t rank = 0; rank < found.size(); ++rank)
    EXPECT_EQ(found[rank].graphs, 2 * slots[rank * slots.size() / found.size()]) << "rank " << rank;
}

// The first stage: F0 F1 B0 F2 B1 F3 B2 B3, without a graph for micro-batch 0. The last: F0 B0 F1 B1 ….
TEST(GraphedSteps, OfPipelineStages) {
  expect_stages_change_nothing(graphed({.name = "pp 2", .pp = 2}), {2, 1});
  expect_stages_change_nothing(graphed({.name = "pp 2, dp 2", .pp = 2, .dp = 2}, share_optimizer), {2, 1});
  expect_stages_change_nothing(graphed({.name = "pp 2, dp 2, overlap", .pp = 2, .dp = 2}, overlap_all), {2, 1});
  expect_stages_change_nothing(
      graphed({.name = "tp 2, pp 2", .tp = 2, .pp = 2}, [](auto& args) { args.parallel.sequence_parallel = true; }),
      {2, 1});
  expect_stages_change_nothing(graphed({.name = "recompute", .pp = 2},
                                       [](auto& args) {
                                         args.recompute.granularity = config::RecomputeGranularity::kFull;
                                         args.recompute.method = config::RecomputeMethod::kUniform;
                                       }),
                               {2, 1});
}

TEST(GraphedSteps, OfPipelineStagesWithDropout) {
  expect_stages_change_nothing(graphed({.name = "dropout", .pp = 2}, drop_everywhere), {2, 1});
  expect_stages_change_nothing(graphed({.name = "dropout, recompute", .pp = 2}, drop_and_recompute), {2, 1});
  expect_stages_change_nothing(graphed({.name = "dropout, lora", .pp = 2}, drop_before_adapters), {2, 1});
}

// Graphs are for one shape: micro-batch 2 runs without, and 3 takes the slot of 1.
TEST(GraphedSteps, OfPipelineStagesHaveOneShape) {
  GraphedCase that = graphed({.name = "pp 2", .pp = 2});
  that.shorter = 2;
  expect_stages_change_nothing(that, {1, 1});
}

// Micro-batches 1 to 3 of the first chunk are in flight together on both stages, and of the second one or two.
TEST(GraphedSteps, OfVirtualStages) {
  expect_stages_change_nothing(graphed({.name = "pp 2, vpp 2", .pp = 2, .vpp = 2}), {5, 4});
}

TEST(GraphedSteps, OfPipelineStagesWithExperts) {
  GraphedCase that = graphed({.name = "experts", .pp = 2});
  that.family = "mixtral";
  expect_stages_change_nothing(that, {2, 1});
}

TEST(GraphedSteps, OfPipelineStagesNeedASecondMicrobatch) {
  GraphedCase that = graphed({.pp = 2});
  that.microbatches = 1;
  that.graphs = 0;
  ::testing::internal::CaptureStderr();
  expect_graphs_change_nothing(that);
  expect_contains(::testing::internal::GetCapturedStderr(),
                  "is not used in steps of 1 micro-batch(es): with pipeline stages the first one");
}

// A stage that cannot record leaves no trace, and the other one does not notice.
TEST(GraphedSteps, OneStageCannotRecord) {
  GraphedCase that = graphed({.name = "pp 2", .pp = 2});
  that.microbatches = 4;
  const auto make = [](const GraphSurroundings& around, int rank) {
    if (rank == 0) return stand_ins(around);
    return train::MakeDeviceGraph([](const train::DeviceGraph*) { return std::make_unique<BrokenGraph>(); });
  };
  const std::vector<RankEnd> found = run_case(that, make);
  expect_equal_ends(found, run_case(that));
  EXPECT_EQ(found[0].graphs, 4);
  EXPECT_EQ(found[1].graphs, 0);
}

// One of two tensor-parallel ranks cannot record: neither replays, and nothing waits for the other.
TEST(GraphedSteps, OfRanksThatShareCollectivesFailTogether) {
  GraphedCase that = graphed({.name = "tp 2", .tp = 2});
  that.graphs = 0;
  const auto make = [](const GraphSurroundings& around, int rank) {
    if (rank == 0) return stand_ins(around);
    return train::MakeDeviceGraph([](const train::DeviceGraph*) { return std::make_unique<BrokenGraph>(); });
  };
  const std::vector<RankEnd> found = run_case(that, make);
  expect_equal_ends(found, run_case(that));
  for (const RankEnd& end : found) EXPECT_EQ(end.graphs, 0);
}

}  // namespace
}  // namespace megalith::testing
