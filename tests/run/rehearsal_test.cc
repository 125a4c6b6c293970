// One rank among stand-ins does what the same rank of a real run does.
#include "megalith/run/rehearsal/rehearsal.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/config/derive.h"
#include "megalith/config/parser.h"
#include "megalith/io/file_io.h"
#include "megalith/layout/group_kind.h"
#include "megalith/layout/rng_seeds.h"
#include "megalith/run/rehearsal/cluster_links.h"
#include "megalith/run/rehearsal/mock_training.h"
#include "megalith/run/rehearsal/pipeline_arrivals.h"
#include "megalith/run/rehearsal/rehearsal_report.h"
#include "megalith/run/rehearsal/tensor_memory.h"
#include "megalith/run/resolve/model_settings.h"
#include "tests/plan/memory_case.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"

namespace megalith::run {
namespace {

using testing::expect_error;
using testing::plan_model;
using testing::Rank;

// A run of a few small layers.
struct Job {
  const char* family = "llama";
  std::vector<std::string> words;
  int world = 1;
  int layers = 4;
  int64_t vocabulary = 500;

  config::TrainingArguments options() const {
    std::vector<std::string> all{"--finetuning_type=full", "--per_device_train_batch_size=1",
                                 "--cutoff_len=64",        "--use_cpu",
                                 "--learning_rate=1e-4",   "--bf16=false"};
    all.insert(all.end(), words.begin(), words.end());
    return config::parse_arguments(config::Dialect::kTrain, all).args;
  }
  PlannedModel model() const {
    const auto config = plan_model(family, {{"num_hidden_layers", layers}, {"vocab_size", vocabulary}});
    return {.config = model_overrides(options()).applied_to(config)};
  }
  RehearsalRequest request(RehearsalChoice choice = {}) const {
    choice.world_size = world;
    if (choice.cluster.gpu.empty()) choice.cluster = plan::find_cluster("cpu");
    return rehearsal_request(options(), model(), choice);
  }
};

// The operations and the memory of a rank in two steps.
struct Seen {
  std::vector<comm::OpTotal> operations;
  double peak = 0;
};

Seen train(const RehearsalRequest& request, comm::World& world) {
  const TensorMemory memory(at::kCPU);
  parallel::ParallelContext context(world, layout::RankGrid(request.shape.grid));
  context.rng().seed(layout::adapter_seeds(42, context.grid(), world.rank()));
  TraceRecorder trace;
  MockTraining training(request.settings, request.shape, context, trace, request.scoring);
  training.prepare();
  memory.reset_peak();
  for (int step = 0; step < 2; ++step) EXPECT_TRUE(training.step());
  return {world.operation_totals(), static_cast<double>(memory.peak())};
}

Seen rehearsed(const RehearsalRequest& request, int rank) {
  const auto others =
      comm::make_stand_ins({.lasts = [](const comm::GroupInfo&, const comm::OpInfo&) { return 0.0; }}, at::kCPU);
  const auto world = comm::World::rehearse(rank, request.choice.world_size, {}, others);
  return train(request, *world);
}

std::string text_of(const std::vector<comm::OpTotal>& totals) {
  std::string text;
  for (const comm::OpTotal& total : totals)
    text += fmt::format("\n  {} {}: {} operations, {} bytes", total.group, comm::to_string(total.kind),
                        total.operations, total.bytes);
  return text;
}

// Every rank of the run does the operations that its rehearsal does. Returns the peaks of both, by rank.
void expect_operations_of_the_run(const Job& job) {
  const RehearsalRequest request = job.request();
  std::vector<Seen> real(static_cast<size_t>(job.world));
  testing::run_ranks(job.world,
                     [&](const Rank& rank) { real[static_cast<size_t>(rank.rank)] = train(request, rank.world); });
  for (int rank = 0; rank < job.world; ++rank) {
    const Seen alone = rehearsed(request, rank);
    const Seen& run = real[static_cast<size_t>(rank)];
    EXPECT_FALSE(alone.operations.empty());
    EXPECT_TRUE(alone.operations == run.operations)
        << "rank " << rank << " rehearsed:" << text_of(alone.operations) << "\nin the run:" << text_of(run.operations);
    // The plan for collectives that work in place.
    const double planned = plan::plan_memory(request.shape)
                               .at(static_cast<size_t>(layout::RankGrid(request.shape.grid).place(rank).pp_rank))
                               .step();
    EXPECT_NEAR(alone.peak / planned, 1, 0.03) << "rank " << rank;
  }
}

TEST(Rehearsal, TensorParallel) { expect_operations_of_the_run({.words = {"--tp=2"}, .world = 2}); }

TEST(Rehearsal, SequenceParallel) {
  expect_operations_of_the_run({.words = {"--tp=2", "--sequence_parallel=true"}, .world = 2});
}

// Each product in 4 slices, since the CPU has no GPU to fill.
TEST(Rehearsal, SequenceParallelInSlices) {
  expect_operations_of_the_run({.words = {"--tp=2", "--sequence_parallel=true", "--tp_comm_overlap=true"}, .world = 2});
}

TEST(Rehearsal, EachStageOfAPipeline) {
  expect_operations_of_the_run({.words = {"--pp=2", "--gradient_accumulation_steps=4"}, .world = 2});
}

TEST(Rehearsal, VirtualStages) {
  expect_operations_of_the_run(
      {.words = {"--pp=2", "--vpp=2", "--gradient_accumulation_steps=4"}, .world = 2, .layers = 8});
}

TEST(Rehearsal, DistributedOptimizer) {
  expect_operations_of_the_run({.words = {"--use_distributed_optimizer=true", "--overlap_grad_reduce=true",
                                          "--overlap_param_gather=true", "--gradient_accumulation_steps=2"},
                                .world = 4});
}

// Every stage has buckets, whether its reductions wait for the end of its last backward or not.
TEST(Rehearsal, BucketsOfEachStage) {
  for (const char* delay : {"--delay_grad_reduce=true", "--delay_grad_reduce=false"}) {
    const Job job{
        .words = {"--pp=2", "--use_distributed_optimizer=true", "--overlap_grad_reduce=true",
                  "--overlap_param_gather=true", "--gradient_accumulation_steps=2", "--ddp_bucket_size=20000", delay},
        .world = 4};
    expect_operations_of_the_run(job);
    for (const int rank : {0, 2}) {
      int64_t reductions = 0;
      for (const comm::OpTotal& total : rehearsed(job.request(), rank).operations)
        if (total.kind == comm::OpKind::kReduceScatter) reductions += static_cast<int64_t>(total.operations);
      EXPECT_GE(reductions, 2 * 2) << "in two steps, rank " << rank;
    }
  }
}

TEST(Rehearsal, ContextParallel) { expect_operations_of_the_run({.words = {"--cp=2"}, .world = 2}); }

// Experts padded to their capacity get as many tokens on every rank.
TEST(Rehearsal, ExpertParallel) {
  expect_operations_of_the_run(
      {.family = "qwen3_moe",
       .words = {"--ep=2", "--moe_token_dispatcher_type=alltoall", "--moe_expert_capacity_factor=1.0",
                 "--moe_pad_expert_input_to_capacity=true"},
       .world = 2});
}

// The plan holds the activations of a micro-batch and of the layers at which two of them meet.
TEST(Rehearsal, ExpertParallelBesideAnotherMicrobatch) {
  const std::vector<std::string> experts{"--ep=2", "--moe_expert_capacity_factor=1.0",
                                         "--moe_pad_expert_input_to_capacity=true",
                                         "--overlap_moe_expert_parallel_comm=true"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), experts.begin(), experts.end());
    return more;
  };
  expect_operations_of_the_run({.family = "qwen3_moe", .words = with({"--gradient_accumulation_steps=3"}), .world = 2});
  expect_operations_of_the_run({.family = "qwen3_moe",
                                .words = with({"--pp=2", "--vpp=2", "--gradient_accumulation_steps=4"}),
                                .world = 4,
                                .layers = 8});
}

// Rows of experts are not padded: their number is what the routers choose.
TEST(Rehearsal, ExpertsAsBusyAsInTheRun) {
  expect_operations_of_the_run({.family = "deepseek_v3", .words = {"--ep=8", "--cutoff_len=256"}, .world = 8});
  expect_operations_of_the_run(
      {.family = "qwen3_moe", .words = {"--ep=2", "--recompute_granularity=full", "--cutoff_len=512"}, .world = 2});
}

// Over many micro-batches the fullest experts set the peak. Those of balanced routers are hardly fuller than the rest;
// the router's own choices would give this rank a peak that is 4 % higher.
TEST(Rehearsal, ManyMicrobatchesOfExperts) {
  const auto peak_over_plan = [](std::vector<std::string> words, int world, int rank) {
    words.insert(words.end(), {"--ep=8", "--overlap_moe_expert_parallel_comm=true", "--cutoff_len=512"});
    const Job job{.family = "deepseek_v3", .words = words, .world = world, .layers = 8};
    const RehearsalRequest request = job.request();
    const double planned = plan::plan_memory(request.shape)
                               .at(static_cast<size_t>(layout::RankGrid(request.shape.grid).place(rank).pp_rank))
                               .step();
    return rehearsed(request, rank).peak / planned;
  };
  EXPECT_NEAR(peak_over_plan({"--gradient_accumulation_steps=8"}, 8, 0), 1, 0.03);
  for (const int rank : {8, 24})
    EXPECT_NEAR(peak_over_plan({"--pp=4", "--vpp=2", "--gradient_accumulation_steps=24"}, 32, rank), 1, 0.03) << rank;
}

// Time passes only where a test says so.
class SetClock : public comm::StandInClock {
 public:
  double now() override { return time_; }
  void wait_until(double time) override { time_ = std::max(time_, time); }
  void pass(double time) { time_ += time; }

 private:
  double time_ = 0;
};

// Returns for how long two steps wait for the exchanges of experts if an operation lasts 1, and the computation before
// it 2.
double exposed_exchanges(const RehearsalRequest& request) {
  auto clock = std::make_unique<SetClock>();
  SetClock& time = *clock;
  const auto lasts = [&time](const comm::GroupInfo&, const comm::OpInfo&) {
    time.pass(2);
    return 1.0;
  };
  const auto others =
      std::make_shared<comm::StandIns>(comm::StandInTimes{.lasts = lasts}, comm::make_host_stand_ins(std::move(clock)));
  const auto world = comm::World::rehearse(0, request.choice.world_size, {}, others);
  train(request, *world);
  return others->take_waits().at(std::string(layout::name(layout::GroupKind::kTpEp))).exposed;
}

// Without overlap, 4 layers wait for 4 exchanges and for the counts of each of 6 micro-batches. With it, the exchanges
// of the first forward and the last backward are exposed, the last one of each of the 5 pairs, and all counts.
TEST(Rehearsal, HidesTheExchangesOfExperts) {
  Job job{.family = "qwen3_moe",
          .words = {"--ep=2", "--moe_expert_capacity_factor=1.0", "--moe_pad_expert_input_to_capacity=true",
                    "--gradient_accumulation_steps=6"},
          .world = 2};
  EXPECT_DOUBLE_EQ(exposed_exchanges(job.request()), 2 * (6 * 4 * 4 + 6 * 4));
  job.words.emplace_back("--overlap_moe_expert_parallel_comm=true");
  EXPECT_DOUBLE_EQ(exposed_exchanges(job.request()), 2 * (2 * 4 + 2 * 4 + 5 + 6 * 4));
}

// Pairs, and texts with classes.
TEST(Rehearsal, ModelsThatScoreSequences) {
  for (const char* layout : {"--tp=2", "--pp=2", "--cp=2"})
    for (const std::vector<std::string>& stage :
         {std::vector<std::string>{"--stage=rm"}, {"--stage=cls", "--num_labels=3"}}) {
      SCOPED_TRACE(fmt::format("{} {}", layout, stage.front()));
      std::vector<std::string> words{layout, "--gradient_accumulation_steps=2", "--calculate_per_token_loss=false"};
      words.insert(words.end(), stage.begin(), stage.end());
      expect_operations_of_the_run({.words = words, .world = 2});
    }
}

TEST(Rehearsal, AllTogether) {
  expect_operations_of_the_run({.words = {"--tp=2", "--pp=2", "--use_distributed_optimizer=true",
                                          "--calculate_per_token_loss=true", "--gradient_accumulation_steps=2"},
                                .world = 8});
}

// Over Gloo, whose all-reduce works in place as a stand-in's does.
TEST(Rehearsal, TakesTheMemoryOfTheRun) {
  for (const char* layout : {"--tp=2", "--pp=2", "--cp=2"}) {
    const Job job{.words = {layout, "--gradient_accumulation_steps=2"}, .world = 2};
    const RehearsalRequest request = job.request();
    std::vector<double> real(2, std::numeric_limits<double>::infinity());
    // A tensor whose last owner is a thread of Gloo's is not seen to be freed, so the least of a few runs counts.
    for (int run = 0; run < 5; ++run)
      testing::run_gloo_ranks(2, [&](const Rank& rank) {
        double& least = real[static_cast<size_t>(rank.rank)];
        least = std::min(least, train(request, rank.world).peak);
      });
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_NEAR(rehearsed(request, rank).peak / real[static_cast<size_t>(rank)], 1, 0.03)
          << layout << ", rank " << rank;
  }
}

// 1F1B on two stages: F0 F1 of rank 0 end at 1 and 2; rank 1 has done F0 and B0 at 4.
TEST(Rehearsal, MessagesComeWhenOtherStagesHaveComputedThem) {
  const layout::PipelineShape shape{.kind = layout::ScheduleKind::kOneFOneB, .pp = 2, .microbatches = 3};
  const layout::PipelineCosts costs{.forward = 1, .backward = 1, .weight_gradient = 1};
  PipelineArrivals last(shape, 1, costs), first(shape, 0, costs);
  for (int step = 0; step < 2; ++step) {
    last.begin_step();
    EXPECT_DOUBLE_EQ(last.next(true, 0), 1);
    EXPECT_DOUBLE_EQ(last.next(true, 0), 2);
    first.begin_step();
    EXPECT_DOUBLE_EQ(first.next(false, 1), 4);
  }
  EXPECT_DOUBLE_EQ(last.next(true, 0), 7);  // rank 0: B0 from 4 to 6, then F2
  EXPECT_DOUBLE_EQ(last.next(true, 0), 0);  // no more
}

// A total takes as long as its operations one by one, inside a node and between nodes.
TEST(Rehearsal, UsesTheSpeedsOfThePlanner) {
  const plan::Cluster cluster = plan::find_cluster("h100-80g");
  ClusterLinks links(cluster);
  for (const std::vector<int>& ranks : {std::vector{0, 1, 2, 3}, std::vector{0, 8, 16, 24}}) {
    const comm::GroupInfo group{.id = fmt::format("{}", ranks.back()), .name = "tp", .ranks = ranks};
    comm::OpInfo small, large;
    small.kind = large.kind = comm::OpKind::kAllReduce;
    small.bytes = 1000;
    large.bytes = 5000;
    const plan::GroupSpeed speed(cluster, 4, ranks[1]);
    EXPECT_DOUBLE_EQ(links.seconds(group, small), speed.all_reduce(1000));
    const comm::OpTotal total{.group = "tp", .kind = small.kind, .operations = 3, .bytes = 7000};
    EXPECT_NEAR(links.seconds(ranks, total), 2 * links.seconds(group, small) + links.seconds(group, large), 1e-12);
  }
}

// Twice the time on links of half the speed, operation by operation.
TEST(Rehearsal, LastsAsLongAsTheLinksSay) {
  plan::Cluster fast = plan::find_cluster("cpu");
  fast.intra = fast.inter = {.bytes_per_second = 1e12, .latency_s = 0};
  plan::Cluster slow = fast;
  slow.intra.bytes_per_second = slow.inter.bytes_per_second = 5e11;
  const Job job{.words = {"--tp=2", "--pp=2", "--use_distributed_optimizer=true"}, .world = 8};
  const RehearsalResult quick = rehearse(job.request({.cluster = fast, .steps = 1}));
  const RehearsalResult late = rehearse(job.request({.cluster = slow, .steps = 1}));
  ASSERT_EQ(quick.communication.size(), late.communication.size());
  double sum = 0;
  for (size_t i = 0; i < quick.communication.size(); ++i) {
    EXPECT_EQ(quick.communication[i].bytes, late.communication[i].bytes);
    EXPECT_NEAR(late.communication[i].lasts_s, 2 * quick.communication[i].lasts_s, 1e-15);
    sum += late.communication[i].lasts_s;
  }
  EXPECT_GT(sum, 0);
}

TEST(Rehearsal, ReportsEachStageBesideThePlan) {
  const testing::TempFolder folder;
  for (int stage = 0; stage < 2; ++stage) {
    const Job job{.words = {"--pp=2", "--gradient_accumulation_steps=2"}, .world = 4};
    const RehearsalRequest request = job.request({.stage = stage, .steps = 1, .trace = folder.path() / "trace.json"});
    EXPECT_EQ(request.rank, 2 * stage);
    const RehearsalResult result = rehearse(request);
    EXPECT_EQ(result.skipped, 0);
    EXPECT_GT(result.step_s, 0);
    EXPECT_GE(result.bubble_s, 0);
    EXPECT_EQ(result.planned_memory.pp_rank, stage);
    const std::string text = rehearsal_text(request, result);
    for (const char* part : {"rehearsed", "planned", "exposed communication", "pipeline bubble", "peak memory",
                             "pp_forward", "pp_backward", "world"})
      testing::expect_contains(text, part);
    EXPECT_EQ(text.find("loss"), std::string::npos);
    EXPECT_EQ(rehearsal_json(request, result).at("stage"), stage);
    EXPECT_GT(nlohmann::json::parse(io::read_text_file(folder.path() / "trace.json", 1 << 26)).at("traceEvents").size(),
              10U);
  }
}

TEST(Rehearsal, RefusesWhatDoesNotExist) {
  const Job job{.words = {"--tp=2", "--pp=2"}, .world = 8};
  expect_error<ConfigError>([&] { job.request({.rank = 8}); }, {"rank is 8", "from 0 to 7"});
  expect_error<ConfigError>([&] { job.request({.stage = 2}); }, {"stage is 2", "from 0 to 1"});
  expect_error<ConfigError>([&] { job.request({.rank = 1, .stage = 1}); }, {"rank and stage are both given"});
  expect_error<ConfigError>([&] { job.request({.steps = 0}); }, {"steps is 0", "from 1"});
  expect_error<ConfigError>([] { Job{.words = {"--tp=2"}, .world = 3}.request(); }, {"3", "tp"});
  expect_error<ConfigError>([] { Job{.words = {"--stage=dpo"}}.request(); }, {"stage dpo cannot be rehearsed"});
  // Nothing is allocated before the plan says that it fits.
  expect_error<ConfigError>([] { Job{.vocabulary = 260'000'000}.request(); },
                            {"rank 0 (stage 0) needs", "free", "--force"});
}

}  // namespace
}  // namespace megalith::run
