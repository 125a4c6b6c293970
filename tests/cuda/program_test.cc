// A run on a GPU beside its computations: recorded micro-batches, its memory over time, and the end of it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "tests/cuda/device_case.h"
#include "tests/cuda/program_case.h"
#include "tests/support/expect.h"

namespace megalith::testing {
namespace {

class OnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test_device() != TestDevice::kCuda) GTEST_SKIP() << "no GPU";
  }
};

std::vector<int> equal_lengths(int count, int length) { return std::vector<int>(static_cast<size_t>(count), length); }

// With graphs and without: the same losses, bit for bit unless `tolerance` is given. Two runs without differ as much in
// the last digits of gradient norms: sums over tokens into embeddings have no fixed order on a GPU.
void expect_graphs_change_nothing(const ProgramCase& runs, Words words, double tolerance = 0) {
  words.insert(words.end(), {"--max_steps=10", "--per_device_train_batch_size=4", "--log_level=debug"});
  const auto plain = runs.train("plain", words);
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  words.emplace_back("--cuda_graph_impl=local");
  const auto graphs = runs.train("graphs", words);
  ASSERT_EQ(graphs.exit_code, 0) << graphs.err;
  EXPECT_EQ(graphs.err.find("cuda_graph_impl"), std::string::npos) << graphs.err;  // no word of why not
  expect_contains(graphs.err, "recorded a graph of a micro-batch of ");
  const std::vector<double> losses = runs.numbers("graphs", "loss"), plain_losses = runs.numbers("plain", "loss");
  ASSERT_EQ(plain_losses.size(), 10U);
  ASSERT_EQ(losses.size(), 10U);
  for (size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(losses[i], plain_losses[i], tolerance * plain_losses[i]) << "step " << i + 1;
  const std::vector<double> norms = runs.numbers("graphs", "grad_norm"), expected = runs.numbers("plain", "grad_norm");
  ASSERT_EQ(norms.size(), expected.size());
  for (size_t i = 0; i < norms.size(); ++i)
    EXPECT_NEAR(norms[i], expected[i], std::max(1e-9, 10 * tolerance * expected[i])) << "step " << i + 1;
}

Words and_then(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_F(OnCuda, GraphsOfOneMicrobatchChangeNothing) {
  expect_graphs_change_nothing(ProgramCase(llama_config({}), equal_lengths(64, 129)), {"--cutoff_len=128"});
}

TEST_F(OnCuda, GraphsOfSeveralMicrobatchesChangeNothing) {
  expect_graphs_change_nothing(ProgramCase(llama_config({}), equal_lengths(64, 129)),
                               {"--cutoff_len=128", "--gradient_accumulation_steps=3", "--cross_entropy_loss_fusion"});
}

TEST_F(OnCuda, GraphsOfAnAdapterChangeNothing) {
  expect_graphs_change_nothing(ProgramCase(llama_config({}), equal_lengths(64, 129)),
                               {"--cutoff_len=128", "--finetuning_type=lora", "--lora_rank=8"});
}

TEST_F(OnCuda, GraphsOfRecomputedLayersChangeNothing) {
  expect_graphs_change_nothing(ProgramCase(llama_config({}), equal_lengths(64, 129)),
                               {"--cutoff_len=128", "--recompute_granularity=full", "--recompute_method=uniform"});
  expect_graphs_change_nothing(
      ProgramCase(llama_config({}), equal_lengths(64, 129)),
      {"--cutoff_len=128", "--recompute_granularity=selective", "--recompute_modules=core_attn,mlp_act,layernorm"});
}

// Replays draw the masks that launches would draw, in forward, backward and recomputation.
TEST_F(OnCuda, GraphsOfDropoutChangeNothing) {
  const auto runs = [] { return ProgramCase(llama_config({}), equal_lengths(64, 129)); };
  const Words words{"--cutoff_len=128", "--gradient_accumulation_steps=2", "--hidden_dropout=0.2"};
  expect_graphs_change_nothing(runs(), words);
  expect_graphs_change_nothing(runs(), and_then(words, {"--recompute_granularity=full", "--recompute_method=uniform"}));
}

TEST_F(OnCuda, GraphsOfAnAdapterWithDropoutChangeNothing) {
  const auto runs = [] { return ProgramCase(llama_config({}), equal_lengths(64, 129)); };
  const Words words{"--cutoff_len=128", "--finetuning_type=lora", "--lora_rank=8", "--lora_dropout=0.2"};
  expect_graphs_change_nothing(runs(), words);
  expect_graphs_change_nothing(runs(), and_then(words, {"--recompute_granularity=full", "--recompute_method=uniform"}));
}

// Flash-2, which knows dropout, adds up gradients in any order unless determinism is asked for.
TEST_F(OnCuda, GraphsOfAttentionWithDropoutChangeNothing) {
  const auto runs = [] { return ProgramCase(llama_config({}), equal_lengths(64, 129)); };
  const Words words{"--cutoff_len=128", "--attention_dropout=0.1", "--full_determinism"};
  expect_graphs_change_nothing(runs(), words);
  expect_graphs_change_nothing(runs(),
                               and_then(words, {"--recompute_granularity=selective", "--recompute_modules=core_attn"}));
}

// The scales of the first step come from its own tensors; those of later steps from the step before.
TEST_F(OnCuda, GraphsOfFp8ChangeNothing) {
  const Words words{"--cutoff_len=128", "--gradient_accumulation_steps=2", "--fp8=e4m3"};
  for (const char* recipe : {"--fp8_recipe=delayed", "--fp8_recipe=tensorwise", "--fp8_recipe=blockwise"}) {
    SCOPED_TRACE(recipe);
    Words all = words;
    all.emplace_back(recipe);
    expect_graphs_change_nothing(ProgramCase(llama_config({.width = 512}), equal_lengths(64, 129)), all, 1e-5);
  }
}

// Choices of experts that are nearly as good as others may change with the last bits of the embedding.
TEST_F(OnCuda, GraphsOfExpertsChangeNothing) {
  nlohmann::json config = llama_config({});
  config.update({{"model_type", "qwen3_moe"},
                 {"head_dim", 64},
                 {"num_experts", 8},
                 {"num_experts_per_tok", 2},
                 {"moe_intermediate_size", 256},
                 {"norm_topk_prob", true},
                 {"decoder_sparse_step", 1},
                 {"mlp_only_layers", nlohmann::json::array()}});
  const ProgramCase runs(config, equal_lengths(64, 129));
  expect_graphs_change_nothing(runs,
                               {"--cutoff_len=128", "--gradient_accumulation_steps=2",
                                "--moe_router_load_balancing_type=aux_loss", "--moe_aux_loss_coeff=0.01"},
                               1e-3);
  // Statistics of routers are those of all micro-batches.
  const std::vector<double> balance = runs.numbers("graphs", "load_balancing_loss"),
                            expected = runs.numbers("plain", "load_balancing_loss");
  ASSERT_EQ(balance.size(), 10U);
  ASSERT_EQ(expected.size(), 10U);
  for (size_t i = 0; i < balance.size(); ++i) EXPECT_NEAR(balance[i], expected[i], 1e-2 * expected[i]);
  expect_graphs_change_nothing(ProgramCase(config, equal_lengths(64, 129)),
                               {"--cutoff_len=128", "--gradient_accumulation_steps=2", "--fp8=hybrid", "--fp8_experts"},
                               1e-3);
}

TEST_F(OnCuda, GraphsAreNotUsedWhereTheyCannotBe) {
  const ProgramCase runs(llama_config({}), equal_lengths(16, 65));
  const Words words{"--cutoff_len=64", "--max_steps=2", "--cuda_graph_impl=local"};
  const std::map<std::string, std::string> reasons{{"--neftune_noise_alpha=5", "neftune_noise_alpha"}};
  for (const auto& [word, reason] : reasons) {
    Words all = words;
    all.push_back(word);
    const auto result = runs.train(reason, all);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    expect_contains(result.err, "cuda_graph_impl local is not used: " + reason);
  }
}

// The first recording comes with the first step after the warm-up; without one, with the second micro-batch.
TEST_F(OnCuda, GraphsAreRecordedAfterTheWarmUp) {
  const ProgramCase runs(llama_config({}), equal_lengths(64, 65));
  const Words words{"--cutoff_len=64", "--max_steps=6", "--cuda_graph_impl=local", "--log_level=debug"};
  for (const auto& [warm_up, first] : {std::pair(0, 2), std::pair(1, 2), std::pair(4, 5)}) {
    Words all = words;
    all.push_back(fmt::format("--cuda_graph_warmup_steps={}", warm_up));
    const auto result = runs.train(fmt::format("out-{}", warm_up), all);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const std::string recorded = "recorded a graph of a micro-batch of ";
    const size_t at = result.err.find(recorded);
    ASSERT_NE(at, std::string::npos) << result.err;
    expect_contains(result.err.substr(at, result.err.find('\n', at) - at), fmt::format("in step {} of", first));
  }
}

// A fiftieth of the device: enough to start, not for the logits, or not for the model.
const std::map<std::string, std::string> kLittleMemory{{"PYTORCH_CUDA_ALLOC_CONF", "per_process_memory_fraction:0.02"}};

void expect_one_message(const ProcessResult& result) {
  EXPECT_EQ(result.exit_code, 1) << result.err;
  for (const char* part : {"the device is out of memory: ", "planned were", "parameters", "What would save most: "})
    expect_contains(result.err, part);
  for (const char* noise : {"frame #", "Exception raised from", "Tried to allocate"})
    EXPECT_EQ(result.err.find(noise), std::string::npos) << result.err;
}

TEST_F(OnCuda, OutOfMemoryInAStep) {
  const ProgramCase runs(llama_config({.vocab = 50000}), equal_lengths(64, 513));
  const auto result =
      runs.train("out", {"--cutoff_len=512", "--max_steps=2", "--per_device_train_batch_size=64"}, kLittleMemory);
  expect_one_message(result);
  expect_contains(result.err, "cross_entropy_loss_fusion");
}

TEST_F(OnCuda, OutOfMemoryForTheModel) {
  const ProgramCase runs(llama_config({.width = 2048, .layers = 60, .vocab = 50000}), equal_lengths(4, 65));
  expect_one_message(runs.train("out", {"--cutoff_len=64", "--max_steps=2"}, kLittleMemory));
}

// A thousand packed batches of which no two have the same number of tokens: what the allocator holds is found in the
// first half, and little of it lies idle.
TEST_F(OnCuda, ThousandStepsOfVaryingLengthsKeepTheirMemory) {
  std::mt19937 random(3);
  std::exponential_distribution<double> drawn(1.0 / 300);
  std::vector<int> lengths;
  for (int i = 0; i < 6000; ++i) lengths.push_back(std::clamp(static_cast<int>(drawn(random)), 16, 1024));
  const ProgramCase runs(llama_config({}), lengths);
  const auto result = runs.train("out", {"--cutoff_len=1024", "--sequence_packing", "--max_steps=1000",
                                         "--per_device_train_batch_size=2", "--logging_steps=10"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<double> reserved = runs.numbers("out", "memory_reserved"), peak = runs.numbers("out", "memory");
  ASSERT_EQ(reserved.size(), 100U);
  const auto half = reserved.begin() + 50;
  const double first = *std::max_element(reserved.begin(), half), second = *std::max_element(half, reserved.end());
  fmt::print("reserved: {:.1f} MiB after 10 steps, at most {:.1f} in 500, {:.1f} in the next 500; peak in use {:.1f}\n",
             reserved[0] / 1048576, first / 1048576, second / 1048576, peak.back() / 1048576);
  EXPECT_LE(second, 1.02 * first);
  EXPECT_LE(second, 1.25 * peak.back() + (64 << 20));
}

// Activations dominate this run: 8 layers of 4096 tokens. With those of 7 layers on the host, the losses are the same,
// and the peak lacks most of what these layers keep.
TEST_F(OnCuda, OffloadedActivationsLeaveTheDevice) {
  const ProgramCase runs(llama_config({.width = 1024, .layers = 8}), equal_lengths(16, 4097));
  Words words{"--cutoff_len=4096", "--max_steps=4", "--per_device_train_batch_size=1",
              "--gradient_accumulation_steps=2", "--cross_entropy_loss_fusion"};
  const auto kept = runs.train("kept", words);
  ASSERT_EQ(kept.exit_code, 0) << kept.err;
  words.emplace_back("--cpu_offloading_num_layers=7");
  const auto offloaded = runs.train("offloaded", words);
  ASSERT_EQ(offloaded.exit_code, 0) << offloaded.err;
  const std::vector<double> losses = runs.numbers("offloaded", "loss"), expected = runs.numbers("kept", "loss");
  ASSERT_EQ(expected.size(), 4U);
  ASSERT_EQ(losses.size(), 4U);
  EXPECT_EQ(losses[0], expected[0]);
  // Gradients of attention on a GPU differ between any two runs in their last bits.
  for (size_t i = 1; i < 4; ++i) EXPECT_NEAR(losses[i], expected[i], 1e-3 * expected[i]);
  const double before = runs.numbers("kept", "memory").back(), after = runs.numbers("offloaded", "memory").back();
  fmt::print("peak: {:.1f} MiB kept, {:.1f} MiB offloaded\n", before / 1048576, after / 1048576);
  // At least eight streams of 4096 x 1024 in bf16 leave each layer; two layers are in flight.
  EXPECT_LT(after, before - 5.0 * 8 * 4096 * 1024 * 2);
}

// As nvidia-smi would show them.
TEST_F(OnCuda, LiveNumbersIncludeTheGpus) {
  const ProgramCase runs(llama_config({}), equal_lengths(64, 129));
  const auto run = runs.train("out", {"--cutoff_len=128", "--max_steps=4", "--per_device_train_batch_size=4"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  std::ifstream file(runs.path("out/live.json"));
  const nlohmann::json live = nlohmann::json::parse(file), gpu = live.at("ranks").at(0).at("gpu");
  EXPECT_GT(gpu.at("memory_used").get<double>(), 0);
  EXPECT_GT(gpu.at("memory_total").get<double>(), gpu.at("memory_used").get<double>());
  EXPECT_GT(gpu.at("temperature").get<double>(), 0);
  EXPECT_GT(gpu.at("watts").get<double>(), 0);
  EXPECT_LE(gpu.at("utilization").get<double>(), 1);
}

// The counter of the driver itself: a GPU at work draws some hundred watts, and at least its idle power.
TEST_F(OnCuda, EnergyIsThatOfTheDriver) {
  const ProgramCase runs(llama_config({}), {});  // a place for the run
  const auto run = run_process({MEGALITH_PROGRAM,
                                "pretrain",
                                "--num-layers=8",
                                "--hidden-size=1024",
                                "--num-attention-heads=16",
                                "--seq-length=2048",
                                "--max-position-embeddings=2048",
                                "--vocab-size=1000",
                                "--tokenizer-type=NullTokenizer",
                                "--mock-data",
                                "--bf16",
                                "--lr=1e-4",
                                "--micro-batch-size=4",
                                "--global-batch-size=4",
                                "--eval-iters=0",
                                "--train-iters=40",
                                "--log-interval=10",
                                "--log-energy",
                                "--no-save-optim",
                                "--save-interval=40",
                                "--save=" + runs.path("out")},
                               {}, std::chrono::seconds(110));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const std::vector<double> joules = runs.numbers("out", "energy_per_device"),
                            watts = runs.numbers("out", "power_per_device");
  ASSERT_EQ(joules.size(), 5U);  // steps 1, 10, 20, 30 and 40 have a line
  ASSERT_EQ(watts.size(), 5U);
  fmt::print("joules per step and watts of the last line: {:.2f}, {:.1f}\n", joules.back(), watts.back());
  for (size_t i = 0; i < watts.size(); ++i) {
    EXPECT_GT(joules[i], 0);
    EXPECT_GT(watts[i], 10);
    EXPECT_LT(watts[i], 2000);
  }
}

// The bytes of weights that stay in fp8 are those that products would cast, so every number of a run is the same.
// Gradients lie in other buffers, so the partial sums of their norm are added in another order, in fp64.
TEST_F(OnCuda, WeightsKeptInFp8ChangeNothing) {
  const ProgramCase runs(llama_config({.width = 1024}), equal_lengths(64, 513));
  for (const std::string recipe : {"delayed", "tensorwise", "blockwise"}) {
    SCOPED_TRACE(recipe);
    Words words{"--cutoff_len=512",
                "--max_steps=10",
                "--per_device_train_batch_size=8",
                "--full_determinism",
                "--use_distributed_optimizer",
                "--fp8=e4m3",
                "--fp8_recipe=" + recipe};
    const auto plain = runs.train(recipe, words);
    ASSERT_EQ(plain.exit_code, 0) << plain.err;
    words.emplace_back("--fp8_param");
    const std::string kept = recipe + "-kept";
    const auto in_fp8 = runs.train(kept, words);
    ASSERT_EQ(in_fp8.exit_code, 0) << in_fp8.err;
    ASSERT_EQ(runs.numbers(kept, "loss").size(), 10U);
    EXPECT_GT(runs.numbers(kept, "fp8_share").back(), 0.5);
    EXPECT_EQ(runs.numbers(kept, "loss"), runs.numbers(recipe, "loss"));
    const std::vector<double> norms = runs.numbers(kept, "grad_norm"), expected = runs.numbers(recipe, "grad_norm");
    ASSERT_EQ(norms.size(), expected.size());
    for (size_t i = 0; i < norms.size(); ++i) EXPECT_NEAR(norms[i], expected[i], 1e-14 * expected[i]);
  }
}

// In 16 bits attention is flash-2's instead of cuDNN's, in fp32 it does not split keys among blocks.
TEST_F(OnCuda, FullDeterminismGivesTheSameBits) {
  const ProgramCase runs(llama_config({.width = 1024, .layers = 4}), equal_lengths(8, 2049));
  for (const std::string precision : {"--bf16=true", "--bf16=false"}) {
    const Words words{"--cutoff_len=2048", "--max_steps=4", "--per_device_train_batch_size=2", "--full_determinism",
                      precision};
    const auto first = runs.train("first" + precision, words), second = runs.train("second" + precision, words);
    ASSERT_EQ(first.exit_code, 0) << first.err;
    ASSERT_EQ(second.exit_code, 0) << second.err;
    for (const char* number : {"loss", "grad_norm"})
      EXPECT_EQ(runs.numbers("first" + precision, number), runs.numbers("second" + precision, number)) << precision;
  }
}

TEST_F(OnCuda, MoreRanksThanGpusAreRefusedBeforeTheyStart) {
  const ProgramCase runs(llama_config({}), equal_lengths(4, 65));
  const auto result = runs.train("out", {"--cutoff_len=64", "--max_steps=1", "--nproc=64"});
  EXPECT_EQ(result.exit_code, 2) << result.err;
  for (const char* part : {"64 ranks are to run on this machine, which has ", "--ddp_backend gloo", "--use_cpu"})
    expect_contains(result.err, part);
  EXPECT_EQ(result.err.find("[rank "), std::string::npos) << result.err;
}

// From the micro-batches to the start of the update the host never stands still, except for the count of rows where
// tokens are dropped, which it reads through ops::HostTensor.
TEST_F(OnCuda, NoStepWaitsForTheDevice) {
  const std::map<std::string, std::string> forbidden{{"MEGALITH_FORBID_DEVICE_WAITS", "1"}};
  const ProgramCase dense(llama_config({}), equal_lengths(64, 129)),
      experts(experts_config({}), equal_lengths(64, 129)),
      varying(llama_config({}), {40, 129, 77, 100, 33, 64, 120, 90});
  const std::vector<std::pair<const ProgramCase*, Words>> cases{
      {&dense, {}},
      {&dense, {"--gradient_accumulation_steps=3", "--cross_entropy_loss_fusion"}},
      {&dense, {"--finetuning_type=lora", "--lora_rank=8"}},
      {&dense, {"--recompute_granularity=full"}},
      {&dense, {"--fp8=hybrid"}},
      {&varying, {"--sequence_packing"}},
      {&experts, {}},
      {&experts, {"--fp8=hybrid", "--fp8_experts"}},
      {&experts,
       {"--gradient_accumulation_steps=3", "--moe_router_load_balancing_type=seq_aux_loss",
        "--moe_aux_loss_coeff=0.01"}},
      {&experts, {"--moe_expert_capacity_factor=1.5", "--moe_token_drop_policy=probs"}},
      {&experts, {"--moe_expert_capacity_factor=1.5", "--moe_pad_expert_input_to_capacity"}}};
  const Words common{"--cutoff_len=128", "--max_steps=6", "--per_device_train_batch_size=4"};
  for (size_t i = 0; i < cases.size(); ++i) {
    Words words = common;
    words.insert(words.end(), cases[i].second.begin(), cases[i].second.end());
    const auto result = cases[i].first->train(fmt::format("out{}", i), words, forbidden);
    EXPECT_EQ(result.exit_code, 0) << fmt::format("case {}\n", i) << result.err;
  }
  // Sinkhorn iterates until the load is balanced, which the host has to see.
  Words iterating = common;
  iterating.emplace_back("--moe_router_load_balancing_type=sinkhorn");
  const auto waits = experts.train("iterating", iterating, forbidden);
  EXPECT_NE(waits.exit_code, 0);
  expect_contains(waits.err, "synchronizing");
}

// A batch of random ids into a file, and what transformers says of it in fp32.
const char* const kTransformersLoss =
    "import sys, torch, transformers\n"
    "from safetensors.torch import save_file\n"
    "ids = torch.randint(0, 50000, (4, 256), generator=torch.Generator().manual_seed(1))\n"
    "save_file({'input_ids': ids}, sys.argv[2])\n"
    "model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()\n"
    "with torch.no_grad(): print(model(ids, labels=ids).loss.item())\n";

TEST_F(OnCuda, AModelOf124MillionEvaluatesTheSameInTransformers) {
  const char* python = std::getenv("MEGALITH_PYTHON");
  if (!python || *python == 0) GTEST_SKIP() << "MEGALITH_PYTHON does not name a Python with transformers";
  const nlohmann::json gpt2{{"model_type", "gpt2"}, {"vocab_size", 50257},
                            {"n_embd", 768},        {"n_layer", 12},
                            {"n_head", 12},         {"n_positions", 1024},
                            {"resid_pdrop", 0},     {"embd_pdrop", 0},
                            {"attn_pdrop", 0},      {"activation_function", "gelu_new"}};
  const ProgramCase runs(gpt2, equal_lengths(64, 513));
  const auto trained = runs.train("out", {"--cutoff_len=512", "--max_steps=30", "--per_device_train_batch_size=8"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const std::string model = runs.path("out"), batch = runs.path("batch.safetensors");
  const auto theirs = run_process({python, "-c", kTransformersLoss, model, batch}, {}, std::chrono::seconds(110));
  ASSERT_EQ(theirs.exit_code, 0) << theirs.err;
  const auto ours = run_process({MEGALITH_PROGRAM, "score", "--model", model, "--input", batch, "--output",
                                 runs.path("scores.safetensors"), "--json"});
  ASSERT_EQ(ours.exit_code, 0) << ours.err;
  const double expected = std::stod(theirs.out), loss = nlohmann::json::parse(ours.out).at("loss");
  fmt::print("loss of the exported model: {:.6f}, in transformers {:.6f}\n", loss, expected);
  EXPECT_NEAR(loss, expected, 1e-5 * expected);
}

}  // namespace
}  // namespace megalith::testing
