// The search over layouts and the time of a step.
#include "megalith/plan/search.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "megalith/base/error.h"
#include "megalith/config/derive.h"
#include "megalith/config/parser.h"
#include "megalith/config/validate.h"
#include "megalith/plan/report.h"
#include "megalith/plan/scaling.h"
#include "megalith/run/resolve/run_shape.h"
#include "tests/plan/memory_case.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::plan {
namespace {

using testing::expect_contains;
using testing::plan_model;

model::ModelConfig llama_8b() {
  return plan_model("llama", {{"hidden_size", 4096},
                              {"num_hidden_layers", 32},
                              {"num_attention_heads", 32},
                              {"num_key_value_heads", 8},
                              {"head_dim", 128},
                              {"intermediate_size", 14336},
                              {"vocab_size", 128256}});
}

model::ModelConfig llama_70b() {
  return plan_model("llama", {{"hidden_size", 8192},
                              {"num_hidden_layers", 80},
                              {"num_attention_heads", 64},
                              {"num_key_value_heads", 8},
                              {"head_dim", 128},
                              {"intermediate_size", 28672},
                              {"vocab_size", 128256}});
}

model::ModelConfig qwen3_30b_a3b() {
  return plan_model("qwen3_moe", {{"hidden_size", 2048},
                                  {"num_hidden_layers", 48},
                                  {"num_attention_heads", 32},
                                  {"num_key_value_heads", 4},
                                  {"head_dim", 128},
                                  {"intermediate_size", 6144},
                                  {"moe_intermediate_size", 768},
                                  {"num_experts", 128},
                                  {"num_experts_per_tok", 8},
                                  {"vocab_size", 151936}});
}

SearchRequest request_for(const model::ModelConfig& model, int gpus, std::vector<std::string> words = {},
                          const std::string& gpu = "h100-80g") {
  words.emplace_back("--bf16=true");
  words.emplace_back("--finetuning_type=full");
  SearchRequest request = run::search_request(model, config::parse_arguments(config::Dialect::kTrain, words).args);
  request.gpus = gpus;
  request.global_batch = 1024;
  request.sequence_length = 4096;
  request.cluster = find_cluster(gpu);
  return request;
}

TEST(LayoutSearch, FindsLayoutsThatFit) {
  const model::ModelConfig model = llama_70b();
  const SearchRequest request = request_for(model, 64);
  const SearchResult result = search_layouts(request);
  ASSERT_EQ(result.best.size(), 5U);
  double before = 0;
  for (const Candidate& candidate : result.best) {
    EXPECT_TRUE(candidate.fits(request.cluster)) << candidate.text();
    EXPECT_GE(candidate.time.total(), before) << "fastest first";
    before = candidate.time.total();
    EXPECT_GT(candidate.time.mfu(), 0.05) << candidate.text();
    EXPECT_LT(candidate.time.mfu(), 0.8) << candidate.text();
    EXPECT_EQ(candidate.run.global_batch(), 1024);
  }
  const std::string text = search_text(request, result);
  expect_contains(text, "limited by");
  expect_contains(text, "tensor_model_parallel_size");
}

// The printed options are accepted by train and give the same layout.
TEST(LayoutSearch, WritesOptionsForTrain) {
  const testing::TempFolder folder;
  for (const model::ModelConfig& model : {llama_8b(), llama_70b(), qwen3_30b_a3b()}) {
    const SearchResult result = search_layouts(request_for(model, 64));
    ASSERT_FALSE(result.best.empty());
    for (const Candidate& candidate : result.best) {
      const std::string file = (folder.path() / "plan.yaml").string();
      std::ofstream(file) << train_yaml(candidate);
      const auto parsed = config::parse_arguments(config::Dialect::kTrain, std::vector{file});
      parsed.report.check_runnable();
      const auto args = config::derive(parsed.args).args;
      EXPECT_TRUE(config::problems(args, {.world_size = 64, .needs_inputs = false}).empty()) << train_yaml(candidate);
      const RunShape run = run::run_shape(model, args, 64, 4096, {});
      EXPECT_EQ(run.grid.tp, candidate.run.grid.tp);
      EXPECT_EQ(run.grid.pp, candidate.run.grid.pp);
      EXPECT_EQ(run.microbatches, candidate.run.microbatches);
      EXPECT_DOUBLE_EQ(fullest(plan_memory(run)).peak(), candidate.memory.peak()) << train_yaml(candidate);
    }
  }
}

TEST(LayoutSearch, KeepsWhatIsGiven) {
  const model::ModelConfig model = llama_8b();
  SearchRequest request = request_for(model, 32, {"--tp=4", "--pp=2"});
  request.given.micro_batch = 2;
  const SearchResult result = search_layouts(request);
  ASSERT_FALSE(result.best.empty());
  for (const Candidate& candidate : result.best) {
    EXPECT_EQ(candidate.run.grid.tp, 4);
    EXPECT_EQ(candidate.run.grid.pp, 2);
    EXPECT_EQ(candidate.run.micro_batch_size, 2);
  }
}

TEST(LayoutSearch, SaysWhyARequestDoesNotFitAndWhatDoes) {
  const model::ModelConfig model = llama_70b();
  const SearchRequest request = request_for(model, 64, {"--tp=1", "--pp=1"});
  const SearchResult result = search_layouts(request);
  EXPECT_TRUE(result.best.empty());
  expect_contains(result.why_not, "GiB on a GPU");
  expect_contains(result.why_not, "parameters");
  ASSERT_TRUE(result.nearest.has_value());
  EXPECT_TRUE(result.nearest->fits(request.cluster));
  expect_contains(search_text(request, result), "nearest that fits");
}

TEST(LayoutSearch, SaysWhatCannotBeDivided) {
  const model::ModelConfig model = llama_8b();
  const SearchResult heads = search_layouts(request_for(model, 48, {"--tp=3"}));
  EXPECT_TRUE(heads.best.empty());
  expect_contains(heads.why_not, "tensor_model_parallel_size 3");
  const SearchResult grid = search_layouts(request_for(model, 12, {"--tp=8"}));
  EXPECT_TRUE(grid.best.empty());
  expect_contains(grid.why_not, "12");
  SearchRequest none = request_for(model, 8);
  none.gpus = 0;
  testing::expect_error<ConfigError>([&] { search_layouts(none); }, {"gpus is 0"});
}

TEST(LayoutSearch, SaysWhenNothingFits) {
  const model::ModelConfig model = llama_70b();
  const SearchRequest request = request_for(model, 1);
  const SearchResult result = search_layouts(request);
  EXPECT_TRUE(result.best.empty());
  EXPECT_FALSE(result.nearest.has_value());
  expect_contains(search_text(request, result), "more, or larger");
}

TEST(LayoutSearch, OffloadsWhereNothingElseHelps) {
  const model::ModelConfig model = llama_8b();
  const SearchResult result = search_layouts(request_for(model, 1));
  ASSERT_FALSE(result.best.empty());
  EXPECT_EQ(result.best.front().run.offload_fraction, 1);
  expect_contains(train_yaml(result.best.front()), "optimizer_cpu_offload: true");
}

TEST(LayoutSearch, AnswersFor1024GpusInTwoSeconds) {
  for (const model::ModelConfig& model : {llama_70b(), qwen3_30b_a3b()}) {
    const std::clock_t begin = std::clock();  // time of this process: others may be busy
    SearchRequest request = request_for(model, 1024);
    request.global_batch = 2048;
    const SearchResult result = search_layouts(request);
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    EXPECT_FALSE(result.best.empty());
    fmt::print("{}: {} sets of sizes, {} weighed, {:.2f} s; best: {}, MFU {:.1f} %\n", model.family, result.possible,
               result.weighed, seconds, result.best.empty() ? "none" : result.best.front().text(),
               result.best.empty() ? 0 : 100 * result.best.front().time.mfu());
    EXPECT_LT(seconds, 2);
  }
}

StepTime time_of(const model::ModelConfig& model, int gpus, const std::vector<std::string>& words, int64_t length,
                 const Cluster& cluster) {
  std::vector<std::string> all = words;
  all.insert(all.end(), {"--bf16=true", "--finetuning_type=full"});
  const auto args = config::derive(config::parse_arguments(config::Dialect::kTrain, all).args).args;
  return plan_step_time(run::run_shape(model, args, gpus, length, cluster.machinery()), cluster);
}

TEST(StepTime, FollowsTheLayout) {
  const model::ModelConfig model = llama_8b();
  const Cluster cluster = find_cluster("h100-80g");
  const std::vector<std::string> batch{"--per_device_train_batch_size=1", "--gradient_accumulation_steps=8"};
  const auto with = [&](std::vector<std::string> words, int gpus = 8) {
    words.insert(words.end(), batch.begin(), batch.end());
    return time_of(model, gpus, words, 4096, cluster);
  };
  const StepTime one = with({}, 1), tp = with({"--tp=8", "--sequence_parallel=true"}), pp = with({"--pp=8"}),
                 dp = with({});
  EXPECT_EQ(one.exposed(), 0);
  EXPECT_EQ(one.bubble, 0);
  EXPECT_GT(tp.tp, 0);
  EXPECT_GT(pp.bubble, 0);
  EXPECT_GT(pp.pp, 0);
  EXPECT_GT(dp.dp, 0);
  EXPECT_LT(tp.compute(), one.compute() / 5);
  // (p - 1) / m of the work, for 8 stages and 8 micro-batches.
  EXPECT_NEAR(pp.bubble / (pp.compute() + pp.exposed() - pp.dp - pp.pp), 7.0 / 8, 0.1);
  EXPECT_LT(with({"--pp=8", "--vpp=4"}).bubble, 0.4 * pp.bubble);
  EXPECT_GT(with({"--recompute_granularity=full"}).recompute, 0.25 * with({}).compute());
  EXPECT_LT(with({"--use_distributed_optimizer=true", "--overlap_grad_reduce=true", "--overlap_param_gather=true"}).dp,
            dp.dp);
  // Across nodes the reduction is slower.
  EXPECT_GT(with({}, 64).dp, dp.dp);
}

// The products of the iteration, each rank's share of them, and what its modes cost.
TEST(StepTime, CountsTheIterationOfMuon) {
  const model::ModelConfig model = llama_8b();
  const Cluster cluster = find_cluster("h100-80g");
  const auto with = [&](std::vector<std::string> words, int gpus = 1) {
    words.insert(words.end(), {"--per_device_train_batch_size=1", "--gradient_accumulation_steps=8"});
    return time_of(model, gpus, words, 4096, cluster).optimizer;
  };
  const auto flop = [](double m, double n) { return 4 * m * m * n + 2 * m * m * m; };
  const double layer = 2 * flop(4096, 4096) + 2 * flop(1024, 4096) + 3 * flop(4096, 14336);
  const double rate = 2 * std::pow(4096.0, 3) / cluster.gemm_seconds(4096, 4096, 4096, /*fp32=*/false);
  const double iteration = 32 * 5 * layer / rate;
  const double alone = with({"--optimizer=muon"}) - with({});
  EXPECT_NEAR(alone / iteration, 1, 0.1);
  EXPECT_NEAR((with({"--optimizer=muon", "--muon_num_ns_steps=10"}) - with({})) / alone, 2, 0.1);
  EXPECT_GT(with({"--optimizer=muon", "--muon_fp32_matmul_prec=high"}), 2 * alone);
  const auto on_eight = [&](std::vector<std::string> words) { return with(std::move(words), 8); };
  EXPECT_GT(on_eight({"--optimizer=muon"}), 0.9 * alone) << "replicas do the same work";
  EXPECT_LT(on_eight({"--optimizer=muon", "--use_distributed_optimizer=true"}), 0.3 * alone);
  const double blocks = on_eight({"--optimizer=muon", "--tp=8"});
  const double whole = on_eight({"--optimizer=muon", "--tp=8", "--muon_tp_mode=duplicated"});
  const double shared = on_eight({"--optimizer=muon", "--tp=8", "--muon_tp_mode=distributed"});
  EXPECT_LT(blocks, shared);
  EXPECT_LT(shared, whole);
}

// The head is on the last stage only, and a rehearsed stage is compared with its own work.
TEST(StepTime, OfOneStageIsThatOfTheRunAtItsPace) {
  const Cluster cluster = find_cluster("h100-80g");
  const std::vector<std::string> words{"--pp=4", "--per_device_train_batch_size=1", "--gradient_accumulation_steps=8",
                                       "--bf16=true", "--finetuning_type=full"};
  const auto args = config::derive(config::parse_arguments(config::Dialect::kTrain, words).args).args;
  const model::ModelConfig model = llama_8b();
  const RunShape run = run::run_shape(model, args, 4, 4096, cluster.machinery());
  const StepTime whole = plan_step_time(run, cluster), last = plan_stage_time(run, cluster, 3),
                 second = plan_stage_time(run, cluster, 1);
  EXPECT_EQ(last.total(), whole.total());
  // 8 layers of 218 million parameters, and a head of 525 million.
  EXPECT_NEAR(last.gemm / second.gemm, (8 * 218.0 + 525) / (8 * 218.0), 0.03);
  EXPECT_NEAR(last.bubble / second.bubble, last.compute() / second.compute(), 0.05);
}

// The tower runs on the first stage alone: its work and FLOPs, once if it is frozen and three times otherwise.
TEST(StepTime, TowersAreOnTheFirstStage) {
  const Cluster cluster = find_cluster("h100-80g");
  const std::vector<std::string> words{"--pp=4", "--per_device_train_batch_size=1", "--gradient_accumulation_steps=8",
                                       "--bf16=true", "--finetuning_type=full"};
  const auto args = config::derive(config::parse_arguments(config::Dialect::kTrain, words).args).args;
  model::ModelConfig model = llama_8b();
  model.vision = nn::VisionShape{.depth = 32, .width = 1280, .heads = 16, .mlp_width = 5120, .out_width = 4096};
  RunShape run = run::run_shape(model, args, 4, 4096, cluster.machinery());
  // 589824 pixels are 27 x 27 rows of 28 x 28 pixels.
  EXPECT_EQ(run.images, 1);
  EXPECT_EQ(run.image_side, 54);
  const auto stages = [&](int64_t images, bool frozen) {
    run.images = images;
    run.options.freeze = {.vision_tower = frozen, .projector = frozen};
    return std::pair(plan_stage_time(run, cluster, 0), plan_stage_time(run, cluster, 1));
  };
  const auto none = stages(0, false), frozen = stages(4, true), trained = stages(4, false);
  EXPECT_EQ(none.second.gemm, trained.second.gemm);
  const double once = frozen.first.gemm - none.first.gemm, all = trained.first.gemm - none.first.gemm;
  EXPECT_GT(once, 0.05 * none.first.gemm);
  EXPECT_NEAR(all / once, 3, 0.3);
  EXPECT_GT(frozen.first.attention, none.first.attention);
  // Model FLOPs per step: 8 samples of four images.
  const double patches = 54 * 54, block = 12 * 1280.0 * 1280, merger = 5120.0 * (5120 + 4096) / 4;
  const double forward = 2 * patches * (1176 * 1280 + 32 * (block + 2 * patches * 1280) + merger);
  EXPECT_NEAR(frozen.first.model_flop - none.first.model_flop, 32 * forward, 1e-9 * frozen.first.model_flop);
  EXPECT_NEAR(trained.first.model_flop - none.first.model_flop, 96 * forward, 1e-9 * frozen.first.model_flop);
  // With a trained tower an equal share of the 32 layers is too much for the first stage.
  run.images = 4;
  const std::optional<int> advice = first_rank_advice(run, cluster);
  ASSERT_TRUE(advice);
  EXPECT_LT(*advice, 8);
  RunShape advised = run;
  advised.stages.first_rank_layers = advice;
  EXPECT_LT(plan_step_time(advised, cluster).total(), 0.98 * plan_step_time(run, cluster).total());
  EXPECT_FALSE(first_rank_advice(advised, cluster));
  run.images = 0;
  EXPECT_FALSE(first_rank_advice(run, cluster));
  // Images are as the user says; by default a sequence must have room for their tokens.
  run::set_media(run, {.images = 3, .image_pixels = 28 * 28 * 100});
  EXPECT_EQ(run.images, 3);
  EXPECT_EQ(run.image_side, 20);
  EXPECT_EQ(run::run_shape(model, args, 4, 100, cluster.machinery()).image_side, 20);
  testing::expect_error<ConfigError>([&] { run::set_media(run, {.images = -1}); }, {"images_per_sample is -1"});
  testing::expect_error<ConfigError>([&] { run::set_media(run, {.sounds = 1}); }, {"for models that hear"});
}

// The same for a tower for sounds: convolutions, blocks and projector.
TEST(StepTime, AudioTowersAreOnTheFirstStage) {
  const Cluster cluster = find_cluster("h100-80g");
  const std::vector<std::string> words{"--pp=4", "--per_device_train_batch_size=1", "--gradient_accumulation_steps=8",
                                       "--bf16=true", "--finetuning_type=full"};
  const auto args = config::derive(config::parse_arguments(config::Dialect::kTrain, words).args).args;
  model::ModelConfig model = llama_8b();
  // As that of Qwen3-Omni.
  model.audio = nn::AudioShape{
      .depth = 32, .width = 1280, .heads = 20, .mlp_width = 5120, .out_width = 4096, .conv_channels = 480};
  RunShape run = run::run_shape(model, args, 4, 4096, cluster.machinery());
  EXPECT_EQ(run.sounds, 1);
  EXPECT_EQ(run.sound_frames, 3000);
  const auto stages = [&](int64_t sounds, bool frozen) {
    run.sounds = sounds;
    run.options.freeze = {.vision_tower = frozen, .projector = frozen};
    return std::pair(plan_stage_time(run, cluster, 0), plan_stage_time(run, cluster, 1));
  };
  const auto none = stages(0, false), frozen = stages(8, true), trained = stages(8, false);
  EXPECT_EQ(none.second.gemm, trained.second.gemm);
  const double once = frozen.first.gemm - none.first.gemm, all = trained.first.gemm - none.first.gemm;
  EXPECT_GT(once, 0.05 * none.first.gemm);
  EXPECT_NEAR(all / once, 3, 0.3);
  EXPECT_GT(frozen.first.attention, none.first.attention);
  EXPECT_GT(frozen.first.memory_bound, none.first.memory_bound);
  // Model FLOPs per step: 8 samples of eight sounds, each of 30 chunks of 13 rows, which see 104 rows at once.
  const double rows = 390, pairs = 3 * 104.0 * 104 + 78 * 78, block = 12 * 1280.0 * 1280;
  const double convolutions = 30 * 480 * 9 * (64 * 50.0 + 480 * 32 * 25.0 + 480 * 16 * 13.0);
  const double forward =
      2 * (convolutions + rows * (480 * 16 * 1280.0 + 32 * block + 1280.0 * (1280 + 4096)) + 32 * 2 * 1280 * pairs);
  EXPECT_NEAR(frozen.first.model_flop - none.first.model_flop, 64 * forward, 1e-9 * frozen.first.model_flop);
  EXPECT_NEAR(trained.first.model_flop - none.first.model_flop, 192 * forward, 1e-9 * frozen.first.model_flop);
  // An equal share of the layers is too much for the first stage.
  run.sounds = 16;
  const std::optional<int> advice = first_rank_advice(run, cluster);
  ASSERT_TRUE(advice);
  EXPECT_LT(*advice, 8);
  // Sounds are as the user says; by default a sequence must have room for their tokens.
  run::set_media(run, {.sounds = 3, .sound_seconds = 12.5});
  EXPECT_EQ(run.sounds, 3);
  EXPECT_EQ(run.sound_frames, 1250);
  EXPECT_EQ(run::run_shape(model, args, 4, 100, cluster.machinery()).sound_frames, 700);
  testing::expect_error<ConfigError>([&] { run::set_media(run, {.sound_seconds = 0}); }, {"sound_seconds is 0"});
  testing::expect_error<ConfigError>([&] { run::set_media(run, {.image_pixels = 1}); }, {"for models that see"});
}

// Layouts whose first chunk lacks layers for the tower's rows are not possible.
TEST(LayoutSearch, KeepsDeepstackOnTheFirstChunk) {
  model::ModelConfig model = llama_8b();
  model.vision = nn::VisionShape{.depth = 27,
                                 .width = 1152,
                                 .heads = 16,
                                 .mlp_width = 4304,
                                 .out_width = 4096,
                                 .patch = 16,
                                 .deepstack_blocks = {8, 16, 24}};
  const SearchRequest request = request_for(model, 16, {"--pp=16"});
  testing::expect_error<ConfigError>([&] { request.shape(request, std::nullopt); },
                                     {"adds rows after each of the first 3 layers"});
  for (const Candidate& candidate : search_layouts(request_for(model, 16)).best) {
    EXPECT_LE(candidate.run.grid.pp * candidate.run.chunks(), 10) << candidate.text();
    EXPECT_EQ(candidate.run.images, 1);
  }
}

// Experts are summed over the ranks that hold the same ones: between nodes, if ep fills a node.
TEST(StepTime, GradientsOfExpertsTravelBetweenTheirOwners) {
  const Cluster cluster = find_cluster("h100-80g");
  const auto with = [&](const char* ep) {
    return time_of(qwen3_30b_a3b(), 64, {ep, "--per_device_train_batch_size=1", "--use_distributed_optimizer=true"},
                   4096, cluster);
  };
  // 29 billion parameters of experts: an eighth of them on each rank, whose 7 other owners are on other nodes.
  const double experts = 48.0 * 128 * 3 * 768 * 2048, others = 1.55e9;
  const GroupSpeed owners(cluster, 8, 8), all(cluster, 64, 1);
  const double expected = owners.reduce_scatter(4 * experts / 8) + owners.all_gather(2 * experts / 8) +
                          all.reduce_scatter(4 * others) + all.all_gather(2 * others);
  EXPECT_NEAR(with("--ep=8").dp, expected, 0.03 * expected);
  EXPECT_LT(with("--ep=64").dp, 0.2 * expected) << "one owner each";
}

TEST(StepTime, OverlapHidesTensorParallelTraffic) {
  const auto with = [](std::vector<std::string> words) {
    words.insert(words.end(), {"--tp=8", "--sequence_parallel=true", "--per_device_train_batch_size=1"});
    return time_of(llama_70b(), 8, words, 8192, find_cluster("h100-80g"));
  };
  const StepTime whole = with({}), sliced = with({"--tp_comm_overlap=true"});
  EXPECT_LT(sliced.tp, 0.6 * whole.tp);
  EXPECT_GT(sliced.tp, 0.1 * whole.tp) << "a first gather and a last scatter are exposed";
  EXPECT_LT(sliced.total(), whole.total());
  EXPECT_EQ(sliced.memory_bound, whole.memory_bound) << "nothing is copied";
  const StepTime one_slice = with({"--tp_comm_overlap=true", "--tp_comm_overlap_slices=1"});
  EXPECT_LT(one_slice.tp, whole.tp) << "weight gradients hide the traffic of backward";
  EXPECT_GT(one_slice.tp, sliced.tp);
  EXPECT_EQ(with({"--tp_comm_overlap=true", "--fp8=hybrid"}).tp, one_slice.tp) << "products in fp8 stay whole";
}

// Measured: docs/gpu.md, one H200.
TEST(StepTime, IsWhatAnH200Takes) {
  const auto llama = [](int hidden, int layers, int heads, int head, int width, bool tied) {
    return plan_model("llama", {{"hidden_size", hidden},
                                {"num_hidden_layers", layers},
                                {"num_attention_heads", heads},
                                {"num_key_value_heads", 8},
                                {"head_dim", head},
                                {"intermediate_size", width},
                                {"vocab_size", 128256},
                                {"tie_word_embeddings", tied}});
  };
  struct Measured {
    const char* name;
    model::ModelConfig model;
    int batch, length;
    double tokens_per_second;
  };
  const std::vector<Measured> runs{
      {"llama-1b", llama(2048, 16, 32, 64, 8192, true), 4, 4096, 62000},
      {"llama-8b width, 4 layers", llama(4096, 4, 32, 128, 14336, false), 4, 4096, 62500},
      {"gpt2-124m", plan_model("gpt2", {{"n_embd", 768}, {"n_layer", 12}, {"n_head", 12}, {"vocab_size", 50257}}), 64,
       1024, 507000},
      {"qwen2.5-0.5b",
       plan_model("qwen2", {{"hidden_size", 896},
                            {"num_hidden_layers", 24},
                            {"num_attention_heads", 14},
                            {"num_key_value_heads", 2},
                            {"head_dim", 64},
                            {"intermediate_size", 4864},
                            {"vocab_size", 151936},
                            {"tie_word_embeddings", true}}),
       8, 4096, 128700}};
  for (const Measured& run : runs) {
    const StepTime step = time_of(run.model, 1, {fmt::format("--per_device_train_batch_size={}", run.batch)},
                                  run.length, find_cluster("h200"));
    const double error = step.tokens_per_second() / run.tokens_per_second - 1;
    fmt::print(
        "{:<26} planned {:>7.0f} tokens/s, measured {:>7.0f}: {:+.1f} %; gemm {:.1f} attention {:.1f} memory {:.1f}"
        " optimizer {:.1f} ms\n",
        run.name, step.tokens_per_second(), run.tokens_per_second, 100 * error, 1e3 * step.gemm, 1e3 * step.attention,
        1e3 * step.memory_bound, 1e3 * step.optimizer);
    EXPECT_LE(std::abs(error), 0.15) << run.name;
  }
}

// Measured: docs/rehearse.md, one rank on one H200.
TEST(StepTime, OfAStageIsWhatItsRehearsalTakes) {
  struct Rehearsed {
    const char* name;
    model::ModelConfig model;
    int gpus, stage;
    int64_t length;
    std::vector<std::string> words;
    double step;             // seconds
    double computation = 0;  // and update; 0 where late launches and exchanges are not told apart
  };
  const auto latent = plan_model("deepseek_v3", {{"hidden_size", 7168},
                                                 {"num_hidden_layers", 8},
                                                 {"intermediate_size", 18432},
                                                 {"moe_intermediate_size", 2048},
                                                 {"num_attention_heads", 128},
                                                 {"num_key_value_heads", 128},
                                                 {"n_routed_experts", 64},
                                                 {"n_shared_experts", 1},
                                                 {"num_experts_per_tok", 8},
                                                 {"n_group", 8},
                                                 {"topk_group", 4},
                                                 {"first_k_dense_replace", 1},
                                                 {"q_lora_rank", 1536},
                                                 {"kv_lora_rank", 512},
                                                 {"qk_rope_head_dim", 64},
                                                 {"qk_nope_head_dim", 128},
                                                 {"v_head_dim", 128},
                                                 {"vocab_size", 129280}});
  const std::string slices = "--tp_comm_overlap=true", now = "--delay_grad_reduce=false",
                    beside = "--overlap_moe_expert_parallel_comm=true";
  const auto in = [](const char* layout, int microbatches, std::vector<std::string> more = {}) {
    std::istringstream words(layout);
    more.insert(more.end(), std::istream_iterator<std::string>(words), {});
    more.push_back(fmt::format("--gradient_accumulation_steps={}", microbatches));
    return more;
  };
  const char* const dense = "--tp=8 --pp=8 --sequence_parallel=true";
  const std::vector<Rehearsed> runs{
      {"llama-3-8b dp 64", llama_8b(), 64, 0, 4096, in("", 2), 0.718, 0.711},
      {"llama-3-8b cp 8", llama_8b(), 64, 0, 131072, in("--cp=8", 1), 4.996},
      {"llama-3-70b tp 8 pp 8", llama_70b(), 1024, 1, 8192, in(dense, 16), 2.672, 1.374},
      {"llama-3-70b, overlap", llama_70b(), 1024, 1, 8192, in(dense, 16, {slices, now}), 2.472},
      {"qwen3-30b-a3b ep 8", qwen3_30b_a3b(), 64, 0, 4096, in("--ep=8", 2), 0.923},
      {"qwen3-30b-a3b, overlap", qwen3_30b_a3b(), 64, 0, 4096, in("--ep=8", 4, {beside}), 1.410},
      {"deepseek-v3 ep 8 pp 4", latent, 256, 1, 4096, in("--ep=8 --pp=4", 8), 0.992, 0.633},
      {"deepseek-v3, overlap", latent, 256, 1, 4096, in("--ep=8 --pp=4 --vpp=2", 32, {beside}), 2.927}};
  const Cluster cluster = find_cluster("h200");
  for (const Rehearsed& run : runs) {
    std::vector<std::string> words = run.words;
    words.insert(words.end(),
                 {"--bf16=true", "--finetuning_type=full", "--per_device_train_batch_size=1",
                  "--use_distributed_optimizer=true", "--overlap_grad_reduce=true", "--overlap_param_gather=true"});
    const auto args = config::derive(config::parse_arguments(config::Dialect::kTrain, words).args).args;
    const StepTime step =
        plan_stage_time(run::run_shape(run.model, args, run.gpus, run.length, cluster.machinery()), cluster, run.stage);
    const double computation = step.compute() + step.optimizer;
    fmt::print(
        "{:<24} planned {:>6.0f} ms, measured {:>6.0f}: {:+.1f} %; gemm {:.0f} attention {:.0f} memory {:.0f} update"
        " {:.0f} ms, exposed tp {:.0f} cp {:.0f} ep {:.0f} pp {:.0f} dp {:.0f}, bubble {:.0f}\n",
        run.name, 1e3 * step.total(), 1e3 * run.step, 100 * (step.total() / run.step - 1), 1e3 * step.gemm,
        1e3 * step.attention, 1e3 * step.memory_bound, 1e3 * step.optimizer, 1e3 * step.tp, 1e3 * step.cp,
        1e3 * step.ep, 1e3 * step.pp, 1e3 * step.dp, 1e3 * step.bubble);
    EXPECT_NEAR(step.total() / run.step, 1, 0.07) << run.name;
    if (run.computation > 0) {
      EXPECT_NEAR(computation / run.computation, 1, 0.12) << run.name;
    }
  }
}

TEST(Scaling, GrowsFailuresAndShortensIntervals) {
  const model::ModelConfig model = llama_70b();
  ScalingRequest request{.search = request_for(model, 16)};
  request.sizes = {64, 1024, 16384, 98304};
  request.courses = 5;
  request.days = 10;
  const auto rows = scaling_study(request);
  ASSERT_EQ(rows.size(), 4U);
  for (size_t i = 0; i < rows.size(); ++i) {
    ASSERT_TRUE(rows[i].layout.has_value()) << rows[i].gpus;
    EXPECT_GT(rows[i].goodput.useful, 0.3);
    if (i == 0) continue;
    EXPECT_LT(rows[i].interval_s, rows[i - 1].interval_s);
    EXPECT_LT(rows[i].goodput.useful, rows[i - 1].goodput.useful + 1e-3);
  }
  expect_contains(scaling_text(request, rows), "98304");
  EXPECT_EQ(scaling_json(rows).size(), 4U);
}

}  // namespace
}  // namespace megalith::plan
