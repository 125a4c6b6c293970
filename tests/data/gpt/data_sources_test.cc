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

TEST(ReadDataSources, WordsFromAFile) {
  const TempFolder temp;
  put_file(temp / "args", "30 a\n  70\tb\n");
  const DataSources sources = read_data_sources({.data_args_path = temp / "args"});
  EXPECT_EQ(sources.all, (Blend{{"a", "b"}, std::vector<double>{30, 70}}));
  put_file(temp / "args", "\n");
  expect_contains(message_of<ConfigError>([&] { read_data_sources({.data_args_path = temp / "args"}); }),
                  "args names no data");
}

TEST(ReadDataSources, ThreeListsFromAJsonFile) {
  const TempFolder temp;
  const std::string path =
      put_file(temp / "args.json", R"({"train": [0.3, "a", "0.7", "b"], "valid": "c d e", "test": []})");
  const DataSources sources = read_data_sources({.per_split_data_args_path = path});
  EXPECT_EQ(sources.by_split[0], (Blend{{"a", "b"}, std::vector<double>{0.3, 0.7}}));
  EXPECT_EQ(sources.by_split[1], (Blend{{"c", "d", "e"}, std::nullopt}));
  EXPECT_EQ(sources.by_split[2], std::nullopt);
  const auto refused = [&](const std::string& text) {
    put_file(path, text);
    return message_of<DataError>([&] { read_data_sources({.per_split_data_args_path = path}); });
  };
  expect_contains(refused(R"({"train": 5})"), "\"train\" is 5");
  expect_contains(refused(R"({"train": ["a", null]})"), "hold strings and numbers only");
  expect_contains(refused("{"), "args.json: not valid JSON");
}

TEST(ReadDataSources, ExactlyOneSource) {
  expect_contains(message_of<ConfigError>([] { read_data_sources({}); }), "0 sources of pre-training data are given");
  expect_contains(message_of<ConfigError>([] { read_data_sources({.data_path = {"a"}, .mock_data = true}); }),
                  "2 sources of pre-training data are given");
}

}  // namespace
}  // namespace megalith::data
