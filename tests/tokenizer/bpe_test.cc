#include "megalith/tokenizer/models/bpe_internal.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "megalith/base/error.h"
#include "megalith/tokenizer/models/word_models_internal.h"
#include "tests/support/expect.h"

namespace megalith::tokenizer {
namespace {

using Ids = std::vector<int32_t>;
using Merges = std::vector<std::pair<std::string, std::string>>;

Vocabulary vocabulary(const std::vector<std::string>& tokens) {
  Vocabulary result;
  for (const std::string& token : tokens) result.add(token, static_cast<int32_t>(result.size()));
  return result;
}

Ids tokenize(const Model& model, std::string_view text) {
  Pieces pieces;
  pieces.reset(text, true);
  Ids ids;
  model.tokenize(pieces, ids);
  return ids;
}

TEST(Vocabulary, TokensAndIdsWithGaps) {
  Vocabulary words;
  words.add("a", 3);
  words.add("", 0);
  words.add("b", 70000);
  EXPECT_EQ(words.find("a"), 3);
  EXPECT_EQ(words.find(""), 0);
  EXPECT_EQ(words.find("c"), std::nullopt);
  EXPECT_EQ(words.token(70000), "b");
  EXPECT_EQ(words.token(5), std::nullopt);
  EXPECT_EQ(words.token(-1), std::nullopt);
  EXPECT_EQ(words.token(70001), std::nullopt);
  EXPECT_EQ(words.size(), 3u);
  EXPECT_EQ(words.id_end(), 70001);
  EXPECT_THROW(words.add("d", 3), InternalError);
}

TEST(Bpe, TheLowestRankGoesFirstAndTheLeftmostOfEqualOnes) {
  const Bpe bpe(vocabulary({"a", "b", "c", "ab", "bc", "abc", "aa"}),
                Merges{{"b", "c"}, {"a", "b"}, {"a", "bc"}, {"a", "a"}}, {}, "file");
  EXPECT_EQ(tokenize(bpe, "abc"), (Ids{5}));  // b+c, then a+bc
  EXPECT_EQ(tokenize(bpe, "ab"), (Ids{3}));
  EXPECT_EQ(tokenize(bpe, "aaa"), (Ids{6, 0}));
  EXPECT_EQ(tokenize(bpe, "aaaa"), (Ids{6, 6}));
  EXPECT_EQ(tokenize(bpe, ""), (Ids{}));
}

TEST(Bpe, UnknownMergesAreNamed) {
  const auto refused = [](const Merges& merges, BpeOptions options, const std::string& part) {
    try {
      const Bpe bpe(vocabulary({"a", "b", "ab"}), merges, std::move(options), "x.json: model");
      ADD_FAILURE() << "accepted";
    } catch (const DataError& error) {
      testing::expect_contains(error.what(), "x.json: model");
      testing::expect_contains(error.what(), part);
    }
  };
  refused({{"a", "b"}, {"a", "c"}}, {}, "merge 1 (\"a\" and \"c\") names \"c\"");
  refused({{"b", "a"}}, {}, "names \"ba\"");
  refused({}, {.unk_token = "<unk>"}, "unk_token is \"<unk>\"");
  refused({{"a", "b"}}, {.continuing_subword_prefix = "##"}, "lacks the continuing_subword_prefix");
}

// Merging by the book: the best pair of the whole row, again and again.
Ids merge_slowly(Ids row, const MergeTable& table) {
  for (;;) {
    size_t best = row.size();
    Merge found;
    for (size_t i = 0; i + 1 < row.size(); ++i) {
      const Merge merge = table.find(row[i], row[i + 1]);
      if (merge.rank < found.rank) {
        found = merge;
        best = i;
      }
    }
    if (best == row.size()) return row;
    row[best] = found.id;
    row.erase(row.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(Merger, ShortAndLongRowsFollowTheSameRule) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    MergeTable table(64);
    int32_t next = 4;
    for (uint32_t rank = 0; rank < 40; ++rank) {
      const auto left = static_cast<int32_t>(random() % static_cast<unsigned>(next));
      const auto right = static_cast<int32_t>(random() % static_cast<unsigned>(next));
      table.set(left, right, {rank, next++});
    }
    Merger merger;
    for (const size_t length : {2u, 10u, 48u, 49u, 300u}) {
      Ids row;
      for (size_t i = 0; i < length; ++i) row.push_back(static_cast<int32_t>(random() % 4));
      merger.symbols = row;
      merger.run(table);
      EXPECT_EQ(merger.symbols, merge_slowly(row, table));
    }
  }
}

// Time that grows with the square of the length would take minutes here.
TEST(Merger, AMillionSymbolsTakeSeconds) {
  MergeTable table(64);
  for (int32_t level = 0; level < 16; ++level) table.set(level, level, {static_cast<uint32_t>(level), level + 1});
  Merger merger;
  merger.symbols.assign((size_t{1} << 20) + 1, 0);
  const auto start = std::chrono::steady_clock::now();
  merger.run(table);
  EXPECT_EQ(merger.symbols.size(), 17u);
  EXPECT_EQ(merger.symbols.front(), 16);
  EXPECT_EQ(merger.symbols.back(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(WordModels, UnknownWordsWithoutAnUnknownTokenAreNamed) {
  const WordLevel words(vocabulary({"a"}), "[UNK]", "x.json: model");
  EXPECT_EQ(tokenize(words, "a"), (Ids{0}));
  EXPECT_THROW(tokenize(words, "b"), DataError);
  const WordPiece pieces(vocabulary({"a", "##b", "[UNK]"}), "[UNK]", "##", 3, "x.json: model");
  EXPECT_EQ(tokenize(pieces, "abb"), (Ids{0, 1, 1}));
  EXPECT_EQ(tokenize(pieces, "abbb"), (Ids{2}));  // too long
  EXPECT_EQ(tokenize(pieces, "abc"), (Ids{2}));
}

}  // namespace
}  // namespace megalith::tokenizer
