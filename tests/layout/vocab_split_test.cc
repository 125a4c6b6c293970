#include "megalith/layout/vocab_split.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "tests/layout/golden_shape.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"

namespace megalith::layout {
namespace {

using nlohmann::json;

json vocab_file() { return testing::golden_json("parallel/vocab_parallel.json"); }

// Rows [vocabulary, multiple, tp, padded, ranges]; ranges of all ranks, or of the first and the last.
TEST(GoldenVocabParallel, vocab_parallel_json_padding) {
  for (const json& row : golden_list(vocab_file(), "padding")) {
    SCOPED_TRACE(row.dump());
    const int tp = row.at(2).get<int>();
    const int64_t padded = padded_vocab_size(row.at(0).get<int64_t>(), row.at(1).get<int64_t>(), tp);
    EXPECT_EQ(padded, row.at(3).get<int64_t>());
    const json& ranges = row.at(4);
    const bool all = ranges.size() == static_cast<size_t>(tp);
    ASSERT_TRUE(all || ranges.size() == 2);
    for (size_t i = 0; i < ranges.size(); ++i) {
      const int rank = all || i == 0 ? static_cast<int>(i) : tp - 1;
      EXPECT_EQ(vocab_range(padded, tp, rank), (IdRange{ranges.at(i).at(0), ranges.at(i).at(1)})) << "rank " << rank;
    }
  }
}

TEST(GoldenVocabParallel, vocab_parallel_json_invalid) {
  for (const json& c : golden_list(vocab_file(), "invalid")) {
    SCOPED_TRACE(c.dump());
    EXPECT_THROW(vocab_range(c.at("vocab").get<int64_t>(), c.at("tp").get<int>(), 0), ConfigError);
  }
}

TEST(VocabSplit, PaddingBelongsToNoValidRange) {
  EXPECT_EQ(valid_vocab_range(10, 16, 4, 1), (IdRange{4, 8}));
  EXPECT_EQ(valid_vocab_range(10, 16, 4, 2), (IdRange{8, 10}));
  EXPECT_EQ(valid_vocab_range(10, 16, 4, 3), (IdRange{10, 10}));
}

TEST(VocabSplit, RefusesWhatCannotBeCut) {
  const auto message = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "not refused";
  };
  testing::expect_contains(message([] { padded_vocab_size(0, 128, 1); }), "vocabulary of 0 tokens");
  testing::expect_contains(message([] { padded_vocab_size(10, 0, 1); }), "make_vocab_size_divisible_by 0");
  testing::expect_contains(message([] { vocab_range(10, 4, 0); }), "cut over tp 4");
  EXPECT_THROW(vocab_range(8, 4, 4), InternalError);
}

}  // namespace
}  // namespace megalith::layout
