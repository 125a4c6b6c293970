// `megalith pretrain`: the reference's option lists, shrunk, and files of one's own, as processes.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/run_losses.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

ProcessResult pretrain(Words words) {
  words.insert(words.begin(), {MEGALITH_PROGRAM, "pretrain"});
  return run_process(words, {}, std::chrono::seconds(100));
}

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Sizes that a test can afford, by option; folders and files are the test's own.
std::map<std::string, std::string> small_values(const fs::path& folder) {
  return {{"--num-layers", "4"},
          {"--hidden-size", "32"},
          {"--ffn-hidden-size", "64"},
          {"--num-attention-heads", "4"},
          {"--num-query-groups", "2"},
          {"--kv-channels", "8"},
          {"--seq-length", "16"},
          {"--max-position-embeddings", "16"},
          {"--vocab-size", "100"},
          {"--tensor-model-parallel-size", "2"},
          {"--pipeline-model-parallel-size", "2"},
          {"--global-batch-size", "8"},
          {"--step-batch-size-schedule", "0:4 64:8"},
          {"--train-iters", "3"},
          {"--lr-decay-iters", "3"},
          {"--train-samples", "24"},
          {"--lr-decay-samples", "24"},
          {"--lr-warmup-samples", "4"},
          {"--eval-iters", "1"},
          {"--eval-interval", "2"},
          {"--save-interval", "2"},
          {"--log-interval", "1"},
          {"--profile-step-start", "1"},
          {"--profile-step-end", "2"},
          {"--vocab-file", (folder / "gpt2-vocab.json").string()},
          {"--merge-file", (folder / "gpt2-merges.txt").string()},
          {"--data-path", (folder / "text_text_document").string()},
          {"--save", (folder / "out").string()},
          {"--load", (folder / "out").string()},
          {"--data-cache-path", (folder / "cache").string()},
          {"--tensorboard-dir", (folder / "board").string()}};
}

// The words of a list: one option per line, quotes around values with blanks.
Words shrunk(const std::string& list, const fs::path& folder) {
  const auto small = small_values(folder);
  Words words;
  for (const std::string& line : golden_lines("options/" + list)) {
    const size_t blank = line.find(' ');
    const std::string name = line.substr(0, blank);
    words.push_back(name);
    if (blank == std::string::npos) continue;
    std::string value = line.substr(blank + 1);
    std::erase_if(value, [](char c) { return c == '"' || c == '\''; });
    words.push_back(small.contains(name) ? small.at(name) : value);
  }
  return words;
}

// The tokenizer under the names that Megatron's scripts give its files, and text in its tokens.
void write_gpt2_files(const fs::path& folder) {
  for (const char* before : {"", "gpt2-"}) {
    std::ofstream(folder / (std::string(before) + "vocab.json"))
        << R"({"a": 0, "b": 1, "c": 2, "ab": 3, "<|endoftext|>": 4})";
    std::ofstream(folder / (std::string(before) + "merges.txt")) << "#version: 0.2\na b\n";
  }
  std::ofstream(folder / "tokenizer_config.json") << R"({"eos_token": "<|endoftext|>"})";
  {
    std::ofstream lines(folder / "text.jsonl");
    for (int i = 0; i < 4000; ++i) lines << (i % 3 == 0 ? R"({"text": "abcabaacb"})" : R"({"text": "bbacab"})") << "\n";
  }
  const auto cut = run_process({MEGALITH_PROGRAM, "data", "tokenize", (folder / "text.jsonl").string(), "--tokenizer",
                                folder.string(), "--output", (folder / "text").string(), "--append_eod"});
  ASSERT_EQ(cut.exit_code, 0) << cut.err;
}

std::string read_whole(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

void expect_finished(const ProcessResult& result, const fs::path& folder, const char* list) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.left_behind, 0);
  expect_contains(result.err, "iteration        3/       3 | consumed samples:");
  expect_contains(result.err, "validation loss at iteration 2 | lm loss value:");
  EXPECT_TRUE(fs::exists(folder / "out" / "config.json"));
  EXPECT_TRUE(fs::exists(folder / "out" / "checkpoint-2" / "model.safetensors"));
  EXPECT_NEAR(report_losses(folder / "out", list), 0, 0.1);  // three steps at the rates of models that are not tiny
}

TEST(PretrainCommand, Gpt3ListRunsShrunk) {
  const TempFolder folder;
  write_gpt2_files(folder.path());
  const auto result = pretrain(shrunk("megatron_gpt3_175b.txt", folder.path()) + Words{"--nproc", "4"});
  expect_finished(result, folder.path(), "gpt3_175b");
  expect_contains(result.err, "global batch size:     8");
}

TEST(PretrainCommand, Llama3ListRunsShrunk) {
  const TempFolder folder;
  const auto result = pretrain(shrunk("megatron_llama3_8b.txt", folder.path()) +
                               Words{"--tensor-model-parallel-size", "1", "--nproc", "2"});
  expect_finished(result, folder.path(), "llama3_8b");
  const std::string options = read_whole(folder.path() / "out" / "args.yaml");
  expect_contains(options, "fp8: \"hybrid\"");
  expect_contains(options, "fp8_recipe: \"delayed\"");  // Megatron's default
  expect_contains(options, "fp8_amax_history_len: 1024");
  EXPECT_TRUE(fs::exists(folder.path() / "board"));
}

const Words kGpt{"--num-layers=2",
                 "--hidden-size=32",
                 "--num-attention-heads=4",
                 "--seq-length=16",
                 "--max-position-embeddings=16",
                 "--micro-batch-size=2",
                 "--train-iters=4",
                 "--lr=0.01",
                 "--log-interval=1",
                 "--eval-iters=1"};

// From text to a model: data tokenize, pretrain with a blend, and the reader of the result.
TEST(PretrainCommand, TrainsOnIndexedFiles) {
  const TempFolder folder;
  {
    std::ofstream lines(folder / "text.jsonl");
    for (int i = 0; i < 200; ++i) lines << R"({"text": "to be or not to be, that is the question )" << i << "\"}\n";
  }
  const std::string tokens = (folder / "tokenizer").string(), prefix = (folder / "text").string();
  const auto made = run_process({MEGALITH_PROGRAM, "data", "train-tokenizer", (folder / "text.jsonl").string(),
                                 "--vocab_size", "300", "--output", tokens});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const auto cut = run_process({MEGALITH_PROGRAM, "data", "tokenize", (folder / "text.jsonl").string(), "--tokenizer",
                                tokens, "--output", prefix, "--append_eod"});
  ASSERT_EQ(cut.exit_code, 0) << cut.err;
  const auto result =
      pretrain(kGpt + Words{"--tokenizer-type=HuggingFaceTokenizer", "--tokenizer-model=" + tokens, "--data-path",
                            "1.0", prefix + "_text_document", "--split=80,10,10", "--nproc", "2",
                            "--save=" + (folder / "out").string(), "--save-interval=4"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(fs::exists(folder / "out/tokenizer.json"));
  EXPECT_TRUE(fs::exists(folder / "out/checkpoint-4/config.json"));
}

// Models that only megatron_gpt holds: the same losses in every layout, and a checkpoint that another layout resumes.
TEST(PretrainCommand, OwnFamilyIsTheSameInEveryLayout) {
  const TempFolder folder;
  const Words model = kGpt + Words{"--num-layers=4",
                                   "--vocab-size=63",
                                   "--mock-data",
                                   "--use-cpu",
                                   "--global-batch-size=8",
                                   "--hidden-dropout=0",
                                   "--attention-dropout=0",
                                   "--calculate-per-token-loss",
                                   "--position-embedding-type=rope",
                                   "--rotary-percent=0.5",
                                   "--rotary-interleaved",
                                   "--attention-output-gate",
                                   "--swiglu",
                                   "--disable-bias-linear",
                                   "--window-size=6,0",
                                   "--window-attn-skip-freq=2",
                                   "--save-interval=2"};
  const auto losses_of = [&](const std::string& name, const Words& more) {
    const std::string out = (folder / name).string();
    const auto result = pretrain(model + Words{"--save=" + out} + more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    expect_contains(result.err, "mistral has other norms");
    std::vector<double> losses;
    std::ifstream lines(folder / name / "metrics.jsonl");
    for (std::string line; std::getline(lines, line);)
      if (const auto values = nlohmann::json::parse(line); values.contains("loss")) losses.push_back(values["loss"]);
    return losses;
  };
  const Words ahead{"--mtp-num-layers=1"};
  const std::vector<double> alone = losses_of("alone", {}), further = losses_of("further", ahead);
  ASSERT_EQ(alone.size(), 4u);
  const auto expect_same = [](const std::vector<double>& losses, const std::vector<double>& expected) {
    ASSERT_EQ(losses.size(), expected.size());
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-5 * expected[i]);
  };
  const Words tp{"--nproc", "2", "--tensor-model-parallel-size=2", "--sequence-parallel"};
  const Words pp{"--nproc", "2", "--pipeline-model-parallel-size=2", "--num-virtual-stages-per-pipeline-rank=2"};
  expect_same(losses_of("tp", tp), alone);
  expect_same(losses_of("pp", pp), alone);
  expect_same(losses_of("cp", {"--nproc", "2", "--context-parallel-size=2"}), alone);
  expect_same(losses_of("tp further", tp + ahead), further);
  expect_same(losses_of("pp further", pp + ahead), further);
  // From the checkpoint of two stages on, with a split of every matrix.
  const auto resumed =
      losses_of("resumed", tp + ahead + Words{"--load=" + (folder / "pp further").string(), "--ckpt-step=2"});
  expect_same(resumed, {further[2], further[3]});
}

// A run that is told of its model by the checkpoint alone.
TEST(PretrainCommand, TakesItsModelFromTheCheckpoint) {
  const TempFolder folder;
  const std::string saved = (folder / "out").string();
  const Words data{"--mock-data", "--use-cpu"};
  const auto first = pretrain(kGpt + data + Words{"--vocab-size=63", "--save=" + saved, "--save-interval=4"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const Words next =
      data + Words{"--load=" + saved, "--use-checkpoint-args", "--micro-batch-size=2",          "--train-iters=6",
                   "--lr=0.01",       "--eval-iters=1",        "--override_opt_param_scheduler"};
  const auto second = pretrain(next + Words{"--nproc", "2", "--tensor-model-parallel-size=2"});
  EXPECT_EQ(second.exit_code, 0) << second.err;
  expect_contains(second.err, "use_checkpoint_args: of " + saved + "/checkpoint-4: num_layers 2, hidden_size 32");
  // A given option counts, and has to fit.
  const auto other = pretrain(next + Words{"--ffn-hidden-size=64"});
  EXPECT_NE(other.exit_code, 0);
  expect_contains(other.err, "ffn_hidden_size is 128 there and 64 in this run");
  const auto nothing = pretrain(next + Words{"--load=" + (folder / "empty").string()});
  EXPECT_EQ(nothing.exit_code, 2);
  expect_contains(nothing.err, "holds no checkpoint");
}

TEST(PretrainCommand, BadInputIsReportedOnceBeforeRanksStart) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "full");
  std::ofstream(folder / "full/file") << "x";
  const Words null{"--vocab-size=63", "--mock-data", "--nproc", "2"};
  const std::vector<std::pair<Words, std::string>> cases{
      {kGpt + Words{"--mock-data"}, "tokenizer_type"},
      {kGpt + Words{"--vocab-size=63"}, "data_path"},
      {kGpt + Words{"--vocab-size=63", "--data-path=/nonexistent/prefix"}, "/nonexistent/prefix.idx"},
      {kGpt + null + Words{"--swiglu", "--squared-relu"}, "swiglu"},
      {kGpt + null + Words{"--global-batch-size=6", "--micro-batch-size=4"}, "6"},
      {kGpt + null + Words{"--save=" + (folder / "full").string(), "--save-interval=1"}, "not empty"},
      {kGpt + null + Words{"--tokenizer-type=HuggingFaceTokenizer"}, "tokenizer_model"},
      {kGpt + null + Words{"--train-iters=-1"}, "train_iters"},
      {kGpt + null +
           Words{"--pipeline-model-parallel-size=2", "--num-layers=4", "--global-batch-size=6",
                 "--num-virtual-stages-per-pipeline-rank=2"},
       "micro-batches"},
      {Words{"--mock-data"}, "num_layers"}};
  for (const auto& [words, part] : cases) {
    const auto result = pretrain(words);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    expect_contains(result.err, part);
    EXPECT_EQ(result.err.find("[rank "), std::string::npos) << result.err;
    EXPECT_EQ(result.err.find("number of parameters"), std::string::npos) << result.err;
  }
}

}  // namespace
}  // namespace megalith::testing
