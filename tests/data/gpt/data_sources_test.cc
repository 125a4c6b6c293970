#include "megalith/data/gpt/data_sources.h"

#include <gtest/gtest.h>

#include "tests/data/data_support.h"

namespace megalith::data {
namespace {

using Words = std::vector<std::string>;

TEST(ParseBlend, BadWordsAreRefused) {
  const auto refused = [](const Words& words) {
    return message_of<ConfigError>([&] { parse_blend(words, "train_data_path"); });
  };
  expect_contains(refused({}), "train_data_path names no data");
  expect_contains(refused({"0.3", "a", "b", "c"}), "train_data_path: 1 of 2 words in front of a prefix are numbers");
  expect_contains(refused({"0", "a", "1", "b"}), "the weight of a is 0; it must be more than 0");
  expect_contains(refused({"1", "a", "-2", "b"}), "the weight of b is -2");
  expect_contains(refused({"nan", "a"}), "the weight of a is nan");
}

TEST(ParseSplit, BadTextsAreRefused) {
  for (const char* text : {"", "0,0,0", "1,2,3,4", "1.2.3", "-1,2", "a,b", "98%"})
    expect_contains(message_of<ConfigError>([&] { parse_split(text); }),
                    fmt::format("split is \"{}\"; it must be", text));
}

TEST(DataSources, ExactlyOneIsGiven) {
  const auto refused = [](const DataSources& sources) { return message_of<ConfigError>([&] { sources.validate(); }); };
  expect_contains(refused({}), "0 sources of pre-training data are given");
  expect_contains(refused({.all = Blend{{"a"}}, .mock = true}), "2 sources of pre-training data are given");
  EXPECT_NO_THROW(DataSources{.mock = true}.validate());
}

}  // namespace
}  // namespace megalith::data
