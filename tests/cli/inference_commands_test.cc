// score and generate as processes in every layout: the same output as from one rank, and errors that end all ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "tests/cli/program_support.h"
#include "tests/support/free_port.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

std::string golden_model(const std::string& name) { return (golden_dir() / "hf" / name).string(); }

// Texts of a file, in its order, from processes that split the model or share the texts.
TEST(InferenceCommands, GenerateSaysTheSameInEveryLayout) {
  const TempFolder temp;
  std::ofstream(temp / "prompts") << "[5, 17, 3]\n[8]\n[1, 2, 3, 4, 5, 6, 7]\n";
  const std::vector<std::string> words{MEGALITH_PROGRAM,
                                       "generate",
                                       "--model",
                                       golden_model("mixtral"),
                                       "--ids",
                                       "--input",
                                       (temp / "prompts").string(),
                                       "--max_new_tokens",
                                       "5",
                                       "--temperature",
                                       "1",
                                       "--num_return_sequences",
                                       "2",
                                       "--use_cpu"};
  const auto generate = [&](const std::vector<std::string>& layout) {
    std::vector<std::string> all = words;
    all.insert(all.end(), layout.begin(), layout.end());
    return run_process(all);
  };
  const auto one = generate({});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(std::ranges::count(one.out, '\n'), 6);
  for (const std::vector<std::string>& layout : {std::vector<std::string>{"--nproc", "2"},
                                                 {"--nproc", "2", "--tp", "2", "--sequence_parallel"},
                                                 {"--nproc", "2", "--pp", "2"},
                                                 {"--nproc", "2", "--pp", "2", "--vpp", "2"},
                                                 {"--nproc", "2", "--cp", "2"},
                                                 {"--nproc", "2", "--ep", "2"},
                                                 {"--nproc", "4", "--pp", "2", "--ep", "2"}}) {
    const auto result = generate(layout);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, one.out) << ::testing::PrintToString(layout);
  }
  // Started rank by rank, as torchrun does.
  const std::string port = std::to_string(free_port());
  const auto variables = [&](const std::string& rank) {
    return std::map<std::string, std::string>{{"RANK", rank},        {"LOCAL_RANK", rank},
                                              {"WORLD_SIZE", "2"},   {"LOCAL_WORLD_SIZE", "2"},
                                              {"MASTER_PORT", port}, {"MASTER_ADDR", "127.0.0.1"}};
  };
  std::vector<std::string> stages = words;
  stages.insert(stages.end(), {"--pp", "2"});
  Subprocess second(stages, variables("1"));
  const auto result = run_process(stages, variables("0"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, one.out);
  const auto other = second.finish(std::chrono::seconds(30));
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_EQ(other.out, "");
}

TEST(InferenceCommands, GenerateWithAnAdapterOnEveryStage) {
  const auto generate = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "--model", golden_model("llama"), "--ids", "--prompt", "[5, 17, 3]",
                               "--max_new_tokens", "6", "--use_cpu"});
    return megalith(more);
  };
  const std::vector<std::string> adapter{"--adapter_name_or_path", golden_model("lora/llama_r8")};
  std::vector<std::string> stages = adapter;
  stages.insert(stages.end(), {"--nproc", "2", "--pp", "2"});
  const auto one = generate(adapter), two = generate(stages);
  ASSERT_EQ(one.exit_code, 0) << one.err;
  ASSERT_EQ(two.exit_code, 0) << two.err;
  EXPECT_EQ(two.out, one.out);
  EXPECT_NE(generate({}).out, one.out);
}

// Rank 0 cannot make the file while the others wait for it.
TEST(InferenceCommands, AFailureOfOneRankEndsAll) {
  const TempFolder temp;
  std::ofstream(temp / "file") << "not a folder";
  const auto result =
      megalith({"score", "--model", golden_model("llama"), "--input", golden_model("llama") + "/golden.safetensors",
                "--output", (temp / "file" / "out").string(), "--nproc", "2", "--pp", "2", "--use_cpu"});
  EXPECT_NE(result.exit_code, 0);
  expect_contains(result.err, (temp / "file").string());
}

}  // namespace
}  // namespace megalith::testing
