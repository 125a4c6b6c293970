// Vocabularies of Megatron's TikTokenizer: the same ids as joining by ranks, and what is refused.
#include "megalith/tokenizer/tiktoken.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "megalith/base/error.h"
#include "megalith/tokenizer/tokenizer.h"
#include "tests/support/expect.h"
#include "tests/support/tokenizers.h"

namespace megalith::tokenizer {
namespace {

using testing::tiktoken_vocabulary;

Tokenizer made_of(const std::vector<std::string>& tokens, const TiktokenSettings& settings = {}) {
  const testing::TemporaryFolder folder(tiktoken_files(tiktoken_vocabulary(tokens), "ranks.json", settings));
  return Tokenizer::from_folder(folder.path());
}

// tiktoken's rule on one word: the neighbors whose joined text has the lowest rank are joined first.
std::vector<int32_t> joined_by_rank(const std::string& word, const std::map<std::string, int>& ranks, int first_id) {
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  if (ranks.contains(word)) parts = {word};
  while (parts.size() > 1) {
    int best = INT32_MAX;
    size_t place = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i)
      if (const auto rank = ranks.find(parts[i] + parts[i + 1]); rank != ranks.end() && rank->second < best) {
        best = rank->second;
        place = i;
      }
    if (best == INT32_MAX) break;
    parts[place] += parts[place + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
  std::vector<int32_t> ids;
  for (const std::string& part : parts) ids.push_back(ranks.at(part) + first_id);
  return ids;
}

TEST(Tiktoken, WordsAreJoinedByRank) {
  std::mt19937 random(3);
  // Tokens as a training of BPE finds them: each joins two earlier ones. A few that no joining leads to.
  std::vector<std::string> tokens, pieces{"a", "b", "c", "d"};
  std::map<std::string, int> ranks;
  for (int byte = 0; byte < 256; ++byte) ranks[std::string(1, static_cast<char>(byte))] = byte;
  const auto add = [&](const std::string& token) {
    if (!ranks.emplace(token, static_cast<int>(256 + tokens.size())).second) return;
    tokens.push_back(token);
    pieces.push_back(token);
  };
  while (tokens.size() < 60) {
    const std::string token = pieces[random() % pieces.size()] + pieces[random() % pieces.size()];
    if (token.size() < 8) add(token);
  }
  add("abcdabcdabcd");
  const TiktokenSettings settings{.num_special_tokens = 20, .special_tokens = {}, .vocab_size = {}};
  const Tokenizer tokenizer = made_of(tokens, settings);
  EXPECT_EQ(tokenizer.vocab_size(), 20 + 256 + static_cast<int>(tokens.size()));
  for (int i = 0; i < 500; ++i) {
    std::string word;
    for (size_t n = 1 + random() % 14; n > 0; --n) word += static_cast<char>('a' + random() % 4);
    EXPECT_EQ(tokenizer.encode(word), joined_by_rank(word, ranks, 20)) << word;
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(word)), word);
  }
  EXPECT_EQ(tokenizer.encode("abcdabcdabcd"), std::vector<int32_t>{20 + ranks.at("abcdabcdabcd")});
}

TEST(Tiktoken, SpecialTokensComeFirst) {
  const Tokenizer tokenizer = made_of({"ab"});
  EXPECT_EQ(tokenizer.vocab_size(), 1000 + 257);
  EXPECT_EQ(tokenizer.bos_id(), 1);
  EXPECT_EQ(tokenizer.eos_id(), 2);
  EXPECT_EQ(tokenizer.unk_id(), 0);
  EXPECT_EQ(tokenizer.pad_id(), 4);
  EXPECT_EQ(tokenizer.id_of("<SPECIAL_999>"), 999);
  EXPECT_EQ(tokenizer.encode("ab</s>a"), (std::vector<int32_t>{1256, 2, 1000 + 'a'}));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{1256, 1000 + 0xC3, 1000 + 0xA9}), "abé");
}

// v1 takes letters of any case as one word; v2 begins a word with each capital letter.
TEST(Tiktoken, PatternsCutDifferently) {
  const std::vector<std::string> tokens{"aB"};
  EXPECT_EQ(made_of(tokens, {.pattern = "v1", .special_tokens = {}, .vocab_size = {}}).encode("aB").size(), 1u);
  EXPECT_EQ(made_of(tokens, {.pattern = "v2", .special_tokens = {}, .vocab_size = {}}).encode("aB").size(), 2u);
}

std::string problem_with(const std::string& file, const TiktokenSettings& settings = {}) {
  try {
    tiktoken_files(file, "ranks.json", settings);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Tiktoken, BadFilesAndSettingsAreNamed) {
  using testing::expect_contains;
  const std::string good = tiktoken_vocabulary({"ab"});
  EXPECT_EQ(problem_with(good), "");
  expect_contains(problem_with("{}"), "ranks.json is not a tiktoken vocabulary");
  expect_contains(problem_with("[1"), "ranks.json");
  std::string shuffled = good;
  shuffled.replace(shuffled.find("\"rank\":7,"), 9, "\"rank\":8,");
  expect_contains(problem_with(shuffled), "entry 7 is not a token of rank 7");
  expect_contains(problem_with(tiktoken_vocabulary({"ab", "ab"})), "is there twice");
  expect_contains(problem_with(tiktoken_vocabulary({"</s>"})), "</s>, which is also a special token");
  expect_contains(problem_with(good, {.special_tokens = {"<s>"}, .vocab_size = {}}), "tiktoken_special_tokens");
  expect_contains(problem_with(good, {.special_tokens = {}, .vocab_size = 1300}), "vocab_size is 1300");
  expect_contains(problem_with(good, {.special_tokens = {}, .vocab_size = 1100}), "the bytes alone need 256");
  EXPECT_EQ(problem_with(good, {.special_tokens = {}, .vocab_size = 1256}), "");  // the file's end is dropped
}

}  // namespace
}  // namespace megalith::tokenizer
