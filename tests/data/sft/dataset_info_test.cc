#include "megalith/data/sft/dataset_info.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "tests/support/expect.h"
#include "tests/support/tokenizers.h"

namespace megalith::data {
namespace {

using testing::error_of;
using testing::expect_contains;
using testing::TemporaryFolder;

DatasetDescription entry(const std::string& text) {
  return read_dataset_entry(io::parse_json(text, "t"), "info \"x\"");
}

TEST(DatasetInfo, listed_columns_and_tags_unset_all_others) {
  EXPECT_EQ(entry("{}").columns, Columns{});
  const Columns columns = entry(R"({"columns": {"prompt": "q", "response": "a"}})").columns;
  EXPECT_EQ(columns.prompt, "q");
  EXPECT_EQ(columns.query, "");
  EXPECT_EQ(columns.messages, "");
  EXPECT_EQ(entry(R"({"formatting": "sharegpt"})").tags, Tags{});
  const Tags tags = entry(R"({"formatting": "sharegpt", "tags": {"role_tag": "r", "user_tag": "u"}})").tags;
  EXPECT_EQ(tags.role, "r");
  EXPECT_EQ(tags.content, "");
  EXPECT_EQ(tags.system, "");
  EXPECT_EQ(entry(R"({"formatting": "openai"})").tags, openai_tags());
}

TEST(DatasetInfo, columns_of_media) {
  const Columns columns = entry(R"({"columns": {"images": "i", "videos": "v", "audios": "a"}})").columns;
  EXPECT_EQ(columns.images, "i");
  EXPECT_EQ(columns.videos, "v");
  EXPECT_EQ(columns.audios, "a");
}

TEST(DatasetInfo, columns_of_verdicts) {
  EXPECT_EQ(entry(R"({"columns": {"prompt": "p", "response": "r", "kto_tag": "good"}})").columns.kto_tag, "good");
  EXPECT_EQ(entry("{}").columns.kto_tag, "");
}

TEST(DatasetInfo, bad_entries_are_named) {
  expect_contains(error_of([] { entry(R"({"formatting": "csv"})"); }), "alpaca, sharegpt or openai");
  expect_contains(error_of([] { entry(R"({"split": "test"})"); }), "\"split\"");
  expect_contains(error_of([] { entry(R"({"num_samples": 0})"); }), "num_samples");
  expect_contains(error_of([] { entry(R"({"columns": {"prompt": 3}})"); }), "columns.prompt");
}

TEST(DatasetInfo, finds_entries_paths_and_folders) {
  const TemporaryFolder folder(
      TemporaryFolder::Files{{"dataset_info.json", R"({"one": {"file_name": "a.jsonl", "num_samples": 3}})"},
                             {"a.jsonl", "{\"instruction\": \"x\", \"output\": \"y\"}\n"},
                             {"b.jsonl", "{\"messages\": []}\n"}});
  std::filesystem::create_directory(folder.path() / "many");
  folder.write("many/2.jsonl", "{\"text\": \"x\"}\n");
  folder.write("many/1.jsonl", "");
  const auto found = find_datasets({"one", "b.jsonl", (folder.path() / "many").string()}, folder.path());
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].num_samples, 3);
  EXPECT_EQ(found[1].formatting, Formatting::kMessages);
  ASSERT_EQ(found[2].files.size(), 2U);
  EXPECT_EQ(found[2].files[0].filename(), "1.jsonl");
  EXPECT_EQ(found[2].columns.prompt, "text");
}

TEST(DatasetInfo, what_is_not_there_is_named_with_the_nearest) {
  const TemporaryFolder folder(TemporaryFolder::Files{
      {"dataset_info.json", R"({"alpaca_en": {"file_name": "none.json"}, "hub": {"hf_hub_url": "org/data"},
                                "scope": {"ms_hub_url": "org/data"}, "script": {"script_url": "x.py"}, "odd": {"hf_hub_url": 3},
                                "none": {}})"}});
  const auto find = [&](const std::string& name) { return error_of([&] { find_datasets({name}, folder.path()); }); };
  expect_contains(find("alpaca_enn"), "did you mean alpaca_en?");
  expect_contains(find("alpaca_en"), "none.json does not exist");
  expect_contains(find("hub"), "hf download --repo-type dataset org/data");
  expect_contains(find("scope"), "modelscope download --dataset org/data");
  expect_contains(find("script"), "script_url");
  expect_contains(find("odd"), "\"hf_hub_url\" is 3");
  expect_contains(find("none"), "file_name");
  expect_contains(error_of([] { find_datasets({"x"}, "/nonexistent"); }), "which does not exist (set dataset_dir)");
}

TEST(DatasetInfo, folders_of_two_types_are_refused) {
  const TemporaryFolder folder(TemporaryFolder::Files{{"a.txt", "x\n"}, {"b.jsonl", "{}\n"}});
  expect_contains(error_of([&] { find_datasets({folder.path().string()}, "."); }), "different types");
}

TEST(DatasetInfo, formats_are_told_by_the_first_record) {
  const auto infer = [](const std::string& record) { return infer_format(io::parse_json(record, "r"), "f.jsonl:1"); };
  EXPECT_EQ(infer(R"({"input_ids": []})").formatting, Formatting::kPretokenized);
  EXPECT_TRUE(infer(R"({"chosen_input_ids": []})").ranking);
  EXPECT_EQ(infer(R"({"prompt": "", "chosen": "", "rejected": ""})").formatting, Formatting::kPairs);
  EXPECT_EQ(infer(R"({"conversations": []})").formatting, Formatting::kSharegpt);
  EXPECT_EQ(infer(R"({"prompt": "", "completion": ""})").columns.response, "completion");
  const std::string error = error_of([&] { infer(R"({"foo": 1, "bar": 2})"); });
  expect_contains(error, "f.jsonl:1");
  expect_contains(error, "foo and bar");
}

}  // namespace
}  // namespace megalith::data
