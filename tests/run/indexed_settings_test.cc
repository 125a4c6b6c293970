#include "megalith/run/resolve/indexed_settings.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "tests/io/file_support.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::run {
namespace {

using io::message_of;
using io::put_file;
using testing::expect_contains;
using testing::TempFolder;

TEST(DataSourcesOfOptions, WordsFromAFile) {
  const TempFolder temp;
  put_file(temp / "args", "30 a\n  70\tb\n");
  const data::DataSources sources = data_sources({.data_args_path = temp / "args"});
  EXPECT_EQ(sources.all, (data::Blend{{"a", "b"}, std::vector<double>{30, 70}}));
  put_file(temp / "args", "\n");
  expect_contains(message_of<ConfigError>([&] { data_sources({.data_args_path = temp / "args"}); }),
                  "args names no data");
}

TEST(DataSourcesOfOptions, ThreeListsFromAJsonFile) {
  const TempFolder temp;
  const std::string path =
      put_file(temp / "args.json", R"({"train": [0.3, "a", "0.7", "b"], "valid": "c d e", "test": []})");
  const data::DataSources sources = data_sources({.per_split_data_args_path = path});
  EXPECT_EQ(sources.by_split[0], (data::Blend{{"a", "b"}, std::vector<double>{0.3, 0.7}}));
  EXPECT_EQ(sources.by_split[1], (data::Blend{{"c", "d", "e"}, std::nullopt}));
  EXPECT_EQ(sources.by_split[2], std::nullopt);
  const auto refused = [&](const std::string& text) {
    put_file(path, text);
    return message_of<DataError>([&] { data_sources({.per_split_data_args_path = path}); });
  };
  expect_contains(refused(R"({"train": 5})"), "\"train\" is 5");
  expect_contains(refused(R"({"train": ["a", null]})"), "hold strings and numbers only");
  expect_contains(refused("{"), "args.json: not valid JSON");
}

TEST(DataSourcesOfOptions, ExactlyOneSource) {
  expect_contains(message_of<ConfigError>([] { data_sources({}); }), "0 sources of pre-training data are given");
  expect_contains(message_of<ConfigError>([] { data_sources({.data_path = {"a"}, .mock_data = true}); }),
                  "2 sources of pre-training data are given");
}

TEST(DataSourcesOfOptions, ASplitCutsDataPath) {
  EXPECT_EQ(data_sources({.data_path = {"a"}}).split, "969, 30, 1");
  EXPECT_EQ(data_sources({.data_path = {"a"}, .split = "8,2"}).split, "8,2");
  expect_contains(message_of<ConfigError>([] { data_sources({.train_data_path = {"a"}, .split = "1,1"}); }),
                  "split cuts data_path; leave it out with other sources of data");
  EXPECT_TRUE(data_sources({.split = "1,1", .mock_data = true}).mock);  // has parts of its own
}

TEST(IndexedSettings, FollowTheOptions) {
  const data::IndexedSettings plain = indexed_settings({.mock_data = true});
  EXPECT_FALSE(plain.cache_folder || plain.eod_mask_loss || plain.reset_position_ids || plain.reset_attention_mask);
  const data::IndexedSettings settings =
      indexed_settings({.mock_data = true, .data_cache_path = "kept", .eod_mask_loss = true});
  EXPECT_EQ(settings.cache_folder, std::filesystem::path("kept"));
  EXPECT_TRUE(settings.eod_mask_loss);
}

}  // namespace
}  // namespace megalith::run
