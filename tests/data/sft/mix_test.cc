#include "megalith/data/sft/mix.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "tests/support/expect.h"

namespace megalith::data {
namespace {

using config::MixStrategy;

// "a0 b0 …": the records that are drawn from datasets of these sizes.
std::string drawn(std::vector<int> sizes, const MixOptions& options) {
  DatasetPicker picker(sizes.size(), options);
  std::vector<int> at(sizes.size(), 0);
  std::string text;
  while (const auto d = picker.next()) {
    text += static_cast<char>('a' + *d) + std::to_string(at[*d]) + " ";
    if (++at[*d] < sizes[*d]) continue;
    picker.exhausted(*d);
    at[*d] = 0;
  }
  return text;
}

TEST(DatasetPicker, in_turn) {
  EXPECT_EQ(drawn({2, 3}, {.strategy = MixStrategy::kConcat}), "a0 a1 b0 b1 b2 ");
  EXPECT_EQ(drawn({2, 3}, {.strategy = MixStrategy::kInterleaveUnder}), "a0 b0 a1 b1 ");
  EXPECT_EQ(drawn({2, 3}, {.strategy = MixStrategy::kInterleaveOver}), "a0 b0 a1 b1 a0 b2 ");
  EXPECT_EQ(drawn({2, 3}, {.strategy = MixStrategy::kInterleaveOnce}), "a0 b0 a1 b1 b2 ");
}

TEST(DatasetPicker, probabilities_are_met_and_repeatable) {
  const MixOptions options{MixStrategy::kInterleaveOver, {0.2, 0.8}, 5};
  const std::string text = drawn({1000, 4000}, options);
  EXPECT_EQ(text, drawn({1000, 4000}, options));
  EXPECT_NE(text, drawn({1000, 4000}, {MixStrategy::kInterleaveOver, {0.2, 0.8}, 6}));
  const auto a = std::ranges::count(text, 'a'), b = std::ranges::count(text, 'b');
  EXPECT_NEAR(static_cast<double>(a) / static_cast<double>(a + b), 0.2, 0.02);
  EXPECT_GE(b, 4000 - 1);
}

TEST(DatasetPicker, once_draws_every_record_once) {
  const std::string text = drawn({30, 70}, {MixStrategy::kInterleaveOnce, {0.5, 0.5}, 5});
  EXPECT_EQ(std::ranges::count(text, 'a'), 30);
  EXPECT_EQ(std::ranges::count(text, 'b'), 70);
}

TEST(DatasetPicker, probabilities_are_checked) {
  EXPECT_EQ(parse_probabilities({"1", " 3"}, 2), (std::vector<double>{0.25, 0.75}));
  const auto error = [](const std::vector<std::string>& words) -> std::string {
    try {
      parse_probabilities(words, 2);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  testing::expect_contains(error({"1"}), "interleave_probs has 1 numbers for 2 datasets");
  testing::expect_contains(error({"1", "x"}), "interleave_probs has \"x\"");
  testing::expect_contains(error({"1", "-1"}), "positive");
}

}  // namespace
}  // namespace megalith::data
