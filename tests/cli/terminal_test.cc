// The output of runs on terminals of several widths, in a pipe, and with --quiet.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "tests/cli/program_support.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kShape = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 300,
 "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
 "head_dim": 8, "max_position_embeddings": 512, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "hidden_act": "silu",
 "tie_word_embeddings": false, "initializer_range": 0.02, "attention_bias": false, "mlp_bias": false})";

// A folder with a tiny model from scratch and token ids to train it on.
class TerminalOutput : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_.path() / "model");
    std::ofstream(folder_.path() / "model" / "config.json") << kShape;
    std::ofstream rows(folder_.path() / "rows.jsonl");
    for (int row = 0; row < 64; ++row) {
      rows << "{\"input_ids\": [";
      for (int i = 0; i < 32; ++i) rows << (i == 0 ? "" : ", ") << (row * 7 + i * 3) % 300;
      rows << "]}\n";
    }
  }
  ProcessResult in_folder(const std::string& command, const std::map<std::string, std::string>& more = {}) const {
    std::map<std::string, std::string> env{
        {"MEGALITH", MEGALITH_PROGRAM}, {"XDG_CACHE_HOME", (folder_.path() / "cache").string()}, {"LC_ALL", "C.UTF-8"}};
    for (const auto& [name, value] : more) env[name] = value;
    return run_process({"bash", "-c", "cd \"$1\" && " + command, "-", folder_.path().string()}, env,
                       std::chrono::seconds(120));
  }
  // The screen of a terminal of this width: stdout and stderr together, with control characters.
  std::string on_terminal(int columns, const std::string& words, const std::map<std::string, std::string>& env = {}) {
    std::ofstream(folder_.path() / "run.sh") << "stty cols " << columns << " rows 24\nexec " << words << "\n";
    const auto result = in_folder("script -qec 'bash run.sh' /dev/null </dev/null", env);
    EXPECT_EQ(result.exit_code, 0) << result.out;
    return result.out;
  }
  static std::string train(const std::string& more = "") {
    return "\"$MEGALITH\" train --stage pt --do_train --finetuning_type full --train_from_scratch"
           " --model_name_or_path model --dataset rows.jsonl --cutoff_len 32 --per_device_train_batch_size 2"
           " --max_steps 40 --logging_steps 2 --save_strategy no --overwrite_output_dir true --output_dir out " +
           more;
  }

  TempFolder folder_;
};

// Characters of UTF-8 that are one column wide.
int columns_of(const std::string& text) {
  return static_cast<int>(std::ranges::count_if(text, [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

// Returns the live line each time that it was drawn.
std::vector<std::string> live_lines(const std::string& screen) {
  std::vector<std::string> lines;
  const std::string erase = "\r\x1b[2K";
  for (size_t at = screen.find(erase); at != std::string::npos;) {
    const size_t begin = at + erase.size();
    at = screen.find(erase, begin);
    std::string line = screen.substr(begin, std::min(at, screen.find_first_of("\r\n", begin)) - begin);
    if (line.starts_with("step ")) lines.push_back(std::move(line));
  }
  return lines;
}

bool is_ascii(const std::string& text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

TEST_F(TerminalOutput, TheLiveLineFitsAndShowsBarAndCurve) {
  for (const int columns : {80, 140}) {
    const auto lines = live_lines(on_terminal(columns, train()));
    ASSERT_FALSE(lines.empty());
    for (const std::string& line : lines) EXPECT_LT(columns_of(line), columns) << line;
    const std::string& last = lines.back();
    expect_contains(last, "step 40/40");
    expect_contains(last, "loss ");
    expect_contains(last, "ETA 0:00:00");
    expect_contains(last, "━");
    if (columns == 140) {
      expect_contains(last, "▁");
    }
  }
}

TEST_F(TerminalOutput, WithoutUtf8EverythingIsAscii) {
  for (const int columns : {80, 140}) {
    const std::string screen = on_terminal(columns, train(), {{"LC_ALL", "C"}});
    EXPECT_TRUE(is_ascii(screen)) << screen;
    ASSERT_FALSE(live_lines(screen).empty());
    expect_contains(live_lines(screen).back(), "[################] 100 %");
  }
}

// Lines of the summary at the end are all that is left.
TEST_F(TerminalOutput, QuietLeavesTheSummary) {
  const auto piped = in_folder(train("--quiet"));
  EXPECT_EQ(piped.exit_code, 0) << piped.err;
  EXPECT_EQ(piped.out, "");
  EXPECT_TRUE(std::regex_search(piped.err, std::regex("^done +40 steps"))) << piped.err;
  for (const char* absent : {"step 2/40", " samples of ", "layout", "\r"})
    EXPECT_EQ(piped.err.find(absent), std::string::npos) << absent << "\n" << piped.err;
  const std::string screen = on_terminal(80, train("--quiet"));
  EXPECT_TRUE(screen.starts_with("done ")) << screen;
  EXPECT_EQ(screen.find('\x1b'), std::string::npos) << screen;
}

// Quiet is the terminal, not the log.
TEST_F(TerminalOutput, QuietLeavesTheLogsOfRanksAlone) {
  ASSERT_EQ(in_folder(train("--quiet --nproc 2 --max_steps 2")).exit_code, 0);
  for (const char* rank : {"rank-0", "rank-1"}) {
    const std::string log = in_folder(std::string("cat out/log/") + rank + ".log").out;
    EXPECT_TRUE(std::regex_search(log, std::regex(std::string(" ") + rank + " info: layout +2 ranks"))) << log;
  }
  expect_contains(in_folder("cat out/log/rank-0.log").out, " rank-0 info: 62 samples of 64 records");
}

TEST_F(TerminalOutput, PipesGetPlainLines) {
  const auto piped = in_folder(train());
  EXPECT_EQ(piped.exit_code, 0) << piped.err;
  expect_contains(piped.err, "\nstep 2/40 | ");
  EXPECT_EQ(piped.err.find('\r'), std::string::npos);
  EXPECT_TRUE(is_ascii(piped.err)) << piped.err;
}

// With MEGALITH_PROGRESS_MS=0 every task counts as long.
TEST_F(TerminalOutput, LongTasksTellHowFarTheyAre) {
  const std::map<std::string, std::string> at_once{{"MEGALITH_PROGRESS_MS", "0"}};
  ASSERT_EQ(in_folder(train("--max_steps 1")).exit_code, 0);
  const std::string convert = "\"$MEGALITH\" convert --checkpoint_path out --output_path converted --overwrite";
  const auto piped = in_folder(convert, at_once);
  EXPECT_EQ(piped.exit_code, 0) << piped.err;
  expect_contains(piped.err, "converting: ");
  EXPECT_EQ(in_folder(convert + " --quiet", at_once).err, "");
  const std::string screen = on_terminal(80, convert, at_once);
  const size_t drawn = screen.find("\r\x1b[2Kconverting: ");
  ASSERT_NE(drawn, std::string::npos) << screen;
  EXPECT_NE(screen.find("\r\x1b[2K", drawn + 10), std::string::npos) << "it is not erased: " << screen;
}

// JSON lines stand between two drawings of the live line; a stream has none, since it would be erased.
TEST_F(TerminalOutput, GeneratedTextStandsAlone) {
  const std::map<std::string, std::string> at_once{{"MEGALITH_PROGRESS_MS", "0"}};
  const std::string generate = "\"$MEGALITH\" generate --model " + (golden_dir() / "hf" / "llama").string() +
                               " --ids --prompt '[5, 17, 3]' --max_new_tokens 40 --use_cpu";
  const std::string text = in_folder(generate).out, line = in_folder(generate + " --json").out;
  const std::string as_json = on_terminal(80, generate + " --json", at_once),
                    stream = on_terminal(80, generate, at_once);
  expect_contains(as_json, "\r\x1b[2Kgenerating: ");
  const size_t at = as_json.find(line.substr(0, line.size() - 1));
  ASSERT_NE(at, std::string::npos) << as_json;
  EXPECT_TRUE(as_json.substr(0, at).ends_with("\x1b[2K")) << as_json;
  EXPECT_EQ(stream.find("generating: "), std::string::npos) << stream;
  expect_contains(stream, text.substr(0, text.size() - 1));
  expect_contains(in_folder(generate, at_once).err, "generating: ");
}

// Samples of 32 tokens for a model of 8 positions.
TEST_F(TerminalOutput, SamplesBeyondThePositionsOfTheModelAreNoticed) {
  ASSERT_EQ(in_folder("sed -i 's/embeddings\": 512/embeddings\": 8/' model/config.json").exit_code, 0);
  const auto warned = in_folder(train("--max_steps 1 --nproc 2"));
  EXPECT_EQ(warned.exit_code, 0) << warned.err;
  const std::string warning = "warning: the longest sample has 32 tokens, and the model has 8 positions";
  expect_contains(warned.err, warning);
  EXPECT_EQ(warned.err.find(warning), warned.err.rfind(warning)) << warned.err;  // one rank says it
  EXPECT_EQ(in_folder(train("--max_steps 1 --cutoff_len 8")).err.find("the longest sample"), std::string::npos);
  // Quiet runs keep warnings.
  expect_contains(in_folder(train("--max_steps 1 --quiet")).err, warning);
  std::ofstream(folder_.path() / "model" / "config.json")
      << R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 300, "n_embd": 32, "n_layer": 1,
             "n_head": 4, "n_positions": 8, "layer_norm_epsilon": 1e-05, "activation_function": "gelu_new"})";
  const auto refused = in_folder(train("--max_steps 1"));
  EXPECT_EQ(refused.exit_code, 2) << refused.err;
  expect_contains(refused.err, "each with a learned embedding; set cutoff_len 8");
}

TEST_F(TerminalOutput, EndTokensOutsideOfTheVocabularyAreNoticed) {
  ASSERT_EQ(in_folder("sed -i 's/^{/{\"eos_token_id\": 99999, /' model/config.json").exit_code, 0);
  expect_contains(in_folder(train("--max_steps 1")).err, "warning: eos_token_id in config.json is 99999");
}

// Ranks write at the same time; each line is that of one rank.
TEST_F(TerminalOutput, LinesOfSeveralRanksAreWhole) {
  const auto result = in_folder(train("--nproc 4 --log_level debug --logging_steps 1"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::regex known(
      R"((step \d+/40 \| .*)|(\[rank \d\] )?((debug|warning): .*|62 samples of 64 records.*)|(model|layout|memory|data|batch|run|output|done|loss|metrics|plot)  +.*)");
  std::istringstream lines(result.err);
  for (std::string line; std::getline(lines, line);) EXPECT_TRUE(std::regex_match(line, known)) << line;
}

}  // namespace
}  // namespace megalith::testing
