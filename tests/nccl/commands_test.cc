// The commands beside training: `eval`, `score`, `generate` and `doctor` on several ranks, against one.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "megalith/hf/weight_writer.h"
#include "tests/nccl/rank_case.h"
#include "tests/support/expect.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class Commands : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto chosen = chosen_transport();
    if (!chosen) GTEST_SKIP() << "no GPU; MEGALITH_NCCL_TESTS=gloo_cpu runs it on the CPU";
    transport_ = *chosen;
  }

  // Returns the output of rank 0.
  std::string run(Words words, int ranks, const Words& layout) const {
    words.insert(words.begin(), MEGALITH_PROGRAM);
    for (const Words& more : {transport_words(transport_, ranks), ranks > 1 ? layout : Words{}})
      words.insert(words.end(), more.begin(), more.end());
    return run_job(words, ranks, transport_).ranks.front().out;
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void print_command(const std::string& name, int ranks, double worst) const {
    fmt::print("nccl-command {} {} {} {:.1e}\n", name, to_string(transport_), ranks, worst);
  }

  Transport transport_ = Transport::kGlooOnCpu;
  TempFolder folder_;
};

TEST_F(Commands, EvalGivesTheSameNumbers) {
  const Words words{"eval",
                    "--model=" + case_model("llama").string(),
                    "--eval_dataset=" + (case_model("llama") / "data.jsonl").string(),
                    "--cutoff_len=32",
                    "--per_device_eval_batch_size=4",
                    "--calculate_per_token_loss",
                    "--json"};
  const json expected = json::parse(run(words, 1, {}));
  for (const Words& layout : {Words{"--tp=2"}, Words{"--pp=2"}, Words{}}) {
    const json actual = json::parse(run(words, 2, layout));
    for (const char* name : {"eval_loss", "eval_perplexity"}) {
      ASSERT_TRUE(expected.contains(name) && actual.contains(name)) << expected.dump();
      const double value = actual.at(name), one = expected.at(name);
      print_command("eval", 2, std::abs(value - one) / one);
      EXPECT_NEAR(value, one, 1e-5 * one) << name << (layout.empty() ? "" : layout.front());
    }
  }
}

TEST_F(Commands, ScoreGivesTheSameLogits) {
  const at::Tensor ids = at::arange(8 * 32).mul(7).remainder(47).reshape({8, 32});
  hf::WeightWriter writer(folder_.path(), {{"input_ids", hf::Dtype::kI64, {8, 32}}}, {.stem = "batch"});
  writer.create_files();
  writer.write("input_ids", {0, 0}, ids);
  writer.sync();
  const Words words{"score", "--model=" + case_model("llama").string(), "--input=" + path("batch.safetensors"),
                    "--logits"};
  const auto scores = [&](const std::string& name, int ranks, const Words& layout) {
    Words all = words;
    all.push_back("--output=" + path(name));
    run(all, ranks, layout);
    return read_tensors(folder_ / name);
  };
  const auto expected = scores("one.safetensors", 1, {});
  const std::vector<std::pair<std::string, Words>> layouts{
      {"tp2_sp", {"--tp=2", "--sequence_parallel"}}, {"cp2", {"--cp=2"}}, {"dp2", {}}};
  for (const auto& [name, layout] : layouts) {
    const auto actual = scores(name + ".safetensors", 2, layout);
    const RunDifference found = difference_of({{}, {}, actual}, {{}, {}, expected});
    print_command("score_" + name, 2, found.tensors);
    EXPECT_LE(found.tensors, 1e-5) << name << ": " << found.where;
  }
}

TEST_F(Commands, GenerateGivesTheSameTokens) {
  const Words words{"generate",
                    "--model=" + case_model("llama").string(),
                    "--ids",
                    "--prompt=[3, 14, 15, 9, 2, 6]",
                    "--max_new_tokens=12",
                    "--json"};
  const json expected = json::parse(run(words, 1, {}));
  EXPECT_EQ(expected.at("ids").size(), 12U);
  EXPECT_EQ(json::parse(run(words, 2, {"--tp=2"})), expected);
  print_command("generate_tp2", 2, 0);
}

TEST_F(Commands, DoctorIsContent) {
  // Small messages: ranks that share a GPU take turns on it.
  run({"doctor", "--ddp_timeout=40", "--size=256KiB"}, 2, {});
  run({"doctor", "--ddp_timeout=40", "--size=256KiB"}, 4, {"--tp=2", "--pp=2"});
}

}  // namespace
}  // namespace megalith::testing
