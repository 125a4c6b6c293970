// Commands on CSV, Parquet and Arrow files as processes: the same losses and files as from JSON lines.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/program_support.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tokenizers.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using TableWords = std::vector<std::string>;

class TableFiles : public ::testing::Test {
 protected:
  static std::string table(const std::string& name) { return "tests/data/tables/" + name; }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string bytes(const std::string& name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    EXPECT_TRUE(file.good()) << name;
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // Trains on token ids and returns the losses of all steps, as they are written.
  std::vector<std::string> losses(const std::string& data, const std::string& output, const TableWords& more) const {
    TableWords words{"train",
                     "--finetuning_type=full",
                     "--use_cpu",
                     "--model_name_or_path=" + (golden_dir() / "hf" / "llama").string(),
                     "--dataset=" + data,
                     "--output_dir=" + path(output),
                     "--per_device_train_batch_size=2",
                     "--max_steps=6",
                     "--learning_rate=1e-3",
                     "--logging_steps=1"};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = megalith(words, {{"XDG_CACHE_HOME", path("cache")}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::vector<std::string> all;
    std::ifstream file(folder_ / output / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto values = nlohmann::json::parse(line);
      if (values.contains("loss")) all.push_back(values.at("loss").dump());
    }
    return all;
  }

  TempFolder folder_;
};

#ifdef MEGALITH_ARROW
TEST_F(TableFiles, TrainingGivesTheLossesOfJsonLines) {
  const TableWords saves_nothing{"--save_strategy=no", "--val_size=3", "--eval_strategy=steps", "--eval_steps=3"};
  const auto expected = losses(table("ids.jsonl"), "lines", saves_nothing);
  ASSERT_EQ(expected.size(), 6U);
  EXPECT_EQ(losses(table("ids.parquet"), "parquet", saves_nothing), expected);
  EXPECT_EQ(losses(table("ids.arrow"), "arrow", saves_nothing), expected);
}

// Two ranks read a stream; it ends in the middle of a row group and continues there with the same bits.
TEST_F(TableFiles, StreamsContinueFromACheckpoint) {
  const TableWords streaming{"--streaming",           "--buffer_size=8", "--nproc=2",
                             "--save_strategy=steps", "--save_steps=2",  "--save_total_limit=9"};
  const auto expected = losses(table("ids.jsonl"), "lines", streaming);
  ASSERT_EQ(expected.size(), 6U);
  EXPECT_EQ(losses(table("ids.parquet"), "whole", streaming), expected);
  TableWords resumed = streaming;
  resumed.push_back("--resume_from_checkpoint=" + path("whole/checkpoint-4"));
  const auto rest = losses(table("ids.parquet"), "rest", resumed);
  ASSERT_GE(rest.size(), 2U);
  EXPECT_EQ(TableWords(rest.end() - 2, rest.end()), TableWords(expected.end() - 2, expected.end()));
  EXPECT_EQ(bytes("rest/model.safetensors"), bytes("whole/model.safetensors"));
}
#endif

TEST_F(TableFiles, CorporaGiveTheTokensOfJsonLines) {
  std::ofstream(folder_ / "corpus.csv") << "id,text\n1,\"two\nlines\"\n2,\n3,plain words\n";
  std::ofstream(folder_ / "corpus.jsonl")
      << "{\"text\": \"two\\nlines\"}\n{\"text\": \"\"}\n{\"text\": \"plain words\"}\n";
  const auto tokenize = [&](const std::string& input, const std::string& output) {
    return megalith({"data", "tokenize", input, "--tokenizer", tokenizer_folder("gpt2").string(), "--append_eod",
                     "--output", path(output)});
  };
  const auto expect_same = [&](const std::string& file, const std::string& lines) {
    const auto made = tokenize(file, "table"), expected = tokenize(lines, "lines");
    ASSERT_EQ(made.exit_code, 0) << made.err;
    ASSERT_EQ(expected.exit_code, 0) << expected.err;
    for (const char* extension : {"bin", "idx"}) {
      const std::string name = std::string("_text_document.") + extension;
      EXPECT_EQ(bytes("table" + name), bytes("lines" + name)) << file;
      fs::remove(folder_ / ("table" + name));
      fs::remove(folder_ / ("lines" + name));
    }
  };
  expect_same(path("corpus.csv"), path("corpus.jsonl"));
  const auto refused = tokenize(table("alpaca.csv"), "refused");
  expect_refused(refused, "alpaca.csv row 1: there is no \"text\"");
#ifdef MEGALITH_ARROW
  expect_same(table("codec_zstd.parquet"), table("codec.jsonl"));
#endif
}

TEST_F(TableFiles, TokenizersAreTrainedOnColumns) {
  const auto train = [&](const std::string& input, const std::string& output, const std::string& key) {
    const auto result = megalith(
        {"data", "train-tokenizer", input, "--vocab_size", "270", "--output", path(output), "--text_key", key});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return bytes(output + "/tokenizer.json");
  };
  EXPECT_EQ(train(table("alpaca.csv"), "csv", "instruction"), train(table("alpaca.jsonl"), "lines", "instruction"));
#ifdef MEGALITH_ARROW
  EXPECT_EQ(train(table("codec_gzip.parquet"), "parquet", "text"), train(table("codec.jsonl"), "texts", "text"));
#endif
  expect_refused(
      megalith({"data", "train-tokenizer", table("alpaca.csv"), "--vocab_size", "270", "--output", path("none")}),
      "alpaca.csv:2: the column \"text\" is missing");
}

// The program alone, away from the library that it opens for such files: other data is read as ever.
TEST_F(TableFiles, WithoutArrowTheyAreRefusedByName) {
  fs::create_directories(folder_ / "bin");
  fs::copy_file(MEGALITH_PROGRAM, folder_ / "bin" / "megalith");
  const auto tokenize = [&](const std::string& input) {
    return run_process({path("bin/megalith"), "data", "tokenize", table(input), "--tokenizer",
                        tokenizer_folder("gpt2").string(), "--output", path("c")});
  };
  const auto refused = tokenize("codec_zstd.parquet");
  expect_refused(refused,
                 "codec_zstd.parquet: Parquet files are read with Arrow's libraries, and this installation lacks");
  expect_contains(refused.err, "make setup");
  expect_contains(refused.err, "Dataset.from_parquet(");
  expect_refused(tokenize("chats.arrow"), "chats.arrow: Arrow files are read with Arrow's libraries");
  EXPECT_EQ(tokenize("codec.jsonl").exit_code, 0);
}

}  // namespace
}  // namespace megalith::testing
