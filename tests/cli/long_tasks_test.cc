// Commands that take long say how far they are. With MEGALITH_PROGRESS_MS=0 every task counts as long.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/cli/program_support.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

class LongTasks : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  ProcessResult run(const std::vector<std::string>& words) const {
    const auto result = megalith(words, {{"XDG_CACHE_HOME", path("cache")}, {"MEGALITH_PROGRESS_MS", "0"}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }
  // Words of many spellings, so that there is something to merge.
  void write_corpus(int64_t words) const {
    std::ofstream file(folder_ / "corpus.jsonl");
    file << "{\"text\":\"";
    uint64_t state = 1;
    for (int64_t i = 0; i < words; ++i) {
      for (int letter = 0; letter < 7; ++letter) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        file << static_cast<char>('a' + (state >> 33) % 12);
      }
      file << (i % 10 == 9 ? "\"}\n{\"text\":\"" : " ");
    }
    file << "\"}\n";
  }

  TempFolder folder_;
};

TEST_F(LongTasks, Planning) {
  const auto result = run({"plan", "--gpus", "512", "--model", (golden_dir() / "hf" / "mixtral").string(),
                           "--cutoff_len", "1024", "--global_batch_size", "1024"});
  expect_contains(result.err, "timing layouts of 512 GPUs: ");
  expect_contains(result.err, "fitting layouts into memory of 512 GPUs: ");
}

TEST_F(LongTasks, TokenizersAndTheirData) {
  write_corpus(2'000);
  const auto trained =
      run({"data", "train-tokenizer", path("corpus.jsonl"), "--vocab_size", "300", "--output", path("tokenizer")});
  expect_contains(trained.err, "counting words of corpus.jsonl: ");
  expect_contains(trained.err, "merging: ");
  expect_contains(trained.err, " tokens (");
  run({"data", "tokenize", path("corpus.jsonl"), "--tokenizer", path("tokenizer"), "--output", path("part")});
  const std::string part = path("part_text_document");
  const auto merged = run({"data", "merge", part, part, "--output", path("whole")});
  expect_contains(merged.err, "checking " + part + ": ");
  expect_contains(merged.err, "copying " + part + ": ");
  expect_contains(run({"data", "verify", path("whole")}).err, "checking " + path("whole") + ": ");
  EXPECT_EQ(run({"data", "verify", path("whole"), "--quiet"}).err, "");
}

// All ranks read the files, and one of them speaks.
TEST_F(LongTasks, FindingRecords) {
  std::ofstream rows(folder_ / "rows.jsonl");
  for (int row = 0; row < 64; ++row) rows << "{\"input_ids\": [1, 2, 3, 4, 5, 6, 7, 8]}\n";
  rows.close();
  const auto result = run({"train",
                           "--stage",
                           "pt",
                           "--do_train",
                           "--finetuning_type",
                           "full",
                           "--model_name_or_path",
                           (golden_dir() / "hf" / "llama").string(),
                           "--dataset",
                           path("rows.jsonl"),
                           "--cutoff_len",
                           "8",
                           "--max_steps",
                           "1",
                           "--save_strategy",
                           "no",
                           "--use_cpu",
                           "--nproc",
                           "2",
                           "--output_dir",
                           path("out")});
  for (const std::string task : {"finding records: ", "looking for tokens in the cache: "}) {
    expect_contains(result.err, "\n" + task);
    EXPECT_EQ(result.err.find("[rank 1] " + task), std::string::npos) << result.err;
  }
}

// Results on stdout are those of a silent task.
TEST_F(LongTasks, ScoringAndGenerating) {
  const std::string model = (golden_dir() / "hf" / "llama").string();
  std::ofstream(folder_ / "prompts") << "[5, 17, 3]\n[8]\n";
  for (const auto& [words, line] :
       {std::pair(std::vector<std::string>{"score", "--model", model, "--input", model + "/golden.safetensors",
                                           "--output", path("scores"), "--json"},
                  "scoring: "),
        std::pair(std::vector<std::string>{"generate", "--model", model, "--ids", "--input", path("prompts"),
                                           "--max_new_tokens", "4", "--json"},
                  "generating: ")}) {
    for (const char* ranks : {"1", "2"}) {
      std::vector<std::string> all = words;
      all.insert(all.end(), {"--use_cpu", "--nproc", ranks});
      const auto result = run(all);
      expect_contains(result.err, line);
      EXPECT_EQ(result.err.find(std::string("[rank 1] ") + line), std::string::npos) << result.err;
      all.emplace_back("--quiet");
      const auto silent = run(all);
      EXPECT_EQ(silent.err, "");
      EXPECT_EQ(silent.out, result.out);
    }
  }
}

}  // namespace
}  // namespace megalith::testing
