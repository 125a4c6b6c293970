// `megalith data train-tokenizer` as a process: texts in, a tokenizer's folder out.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "megalith/tokenizer/tokenizer.h"
#include "tests/support/expect.h"
#include "tests/support/subprocess.h"
#include "tests/support/tokenizers.h"

namespace megalith::testing {
namespace {

using Files = TemporaryFolder::Files;

ProcessResult train(std::vector<std::string> words) {
  words.insert(words.begin(), {MEGALITH_PROGRAM, "data", "train-tokenizer"});
  return run_process(words);
}

const Files kCorpus{{"a.txt", "low lower lowest\nnew newer newest\n"}, {"b.jsonl", "{\"text\": \"low new wider\"}\n"}};

TEST(DataTrainTokenizer, MakesAFolderThatTokenizes) {
  const TemporaryFolder folder(kCorpus);
  const auto path = [&](const char* name) { return (folder.path() / name).string(); };
  const auto result =
      train({path("a.txt"), path("b.jsonl"), "--vocab-size", "266", "--output", path("made"), "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto report = nlohmann::json::parse(result.out);
  EXPECT_EQ(report.at("vocab_size"), 266);
  EXPECT_EQ(report.at("merges"), 266 - 259);
  const auto tokenizer = tokenizer::Tokenizer::from_folder(folder.path() / "made");
  EXPECT_EQ(tokenizer.vocab_size(), 266);
  EXPECT_LT(tokenizer.encode("low new").size(), 7U);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("low new")), "low new");
  EXPECT_EQ(tokenizer.token_of(0), "<|endoftext|>");
}

TEST(DataTrainTokenizer, TakesOtherSpecialTokens) {
  const TemporaryFolder folder(kCorpus);
  const auto result =
      train({(folder.path() / "a.txt").string(), "--vocab-size", "5000", "--output", (folder.path() / "made").string(),
             "--special_tokens", "<s>,</s>", "--pre_tokenizer", "gpt2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_contains(result.err, "not 5000");  // the corpus is small, and it says so
  const auto tokenizer = tokenizer::Tokenizer::from_folder(folder.path() / "made");
  EXPECT_EQ(tokenizer.token_of(1), "</s>");
}

TEST(DataTrainTokenizer, BadInputLeavesNothingBehind) {
  const TemporaryFolder folder(Files{{"a.txt", "x\n"}, {"bad.jsonl", "{\"text\": \"a\"}\n{}\n"}, {"empty.txt", ""}});
  const std::string made = (folder.path() / "made").string();
  const auto refused = [&](std::vector<std::string> words, const std::string& part) {
    const auto result = train(std::move(words));
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    expect_contains(result.err, part);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 3);
  };
  const auto file = [&](const char* name) { return (folder.path() / name).string(); };
  refused({"--vocab_size", "300", "--output", made}, "no texts are given");
  refused({file("a.txt"), "--output", made}, "--vocab_size is missing");
  refused({file("a.txt"), "--vocab_size", "300"}, "--output is missing");
  refused({file("a.txt"), "--vocab_size", "10", "--output", made}, "vocab_size is 10");
  refused({file("bad.jsonl"), "--vocab_size", "300", "--output", made}, "bad.jsonl:2:");
  refused({file("none.txt"), "--vocab_size", "300", "--output", made}, "none.txt cannot be opened");
  refused({file("empty.txt"), "--vocab_size", "300", "--output", made}, "there is no text");
  refused({file("a.txt"), "--vocab_size", "300", "--output", made, "--pre_tokenizer", "x"}, "qwen2 or gpt2");
  refused({file("a.txt"), "--vocab_size", "300", "--output", folder.path().string()}, folder.path().string());
}

TEST(DataTrainTokenizer, TasksAreListed) {
  const auto help = run_process({MEGALITH_PROGRAM, "data", "--help"});
  EXPECT_EQ(help.exit_code, 0) << help.err;
  expect_contains(help.out, "train-tokenizer");
  const auto unknown = run_process({MEGALITH_PROGRAM, "data", "train-tokeniser"});
  EXPECT_EQ(unknown.exit_code, 2);
  expect_contains(unknown.err, "did you mean train-tokenizer?");
  expect_contains(train({"--help"}).out, "--special_tokens");
}

}  // namespace
}  // namespace megalith::testing
