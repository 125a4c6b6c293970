// Folders of tokens on disk.
#include "megalith/data/token_table.h"

#include <gtest/gtest.h>

#include <fstream>

#include "megalith/base/error.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::data {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::expect_contains;
using testing::TempFolder;

std::vector<Sample> some_samples() {
  return {{{.ids = {1, 2, 3}, .labels = {-100, 2, 3}}, {}},
          {{.ids = {4, 5, 6, 0}, .labels = {4, 5, 6, -100}, .pieces = {1, 2}}, {}},
          {{.ids = {7}, .labels = {7}}, {}}};
}

TEST(TokenFolder, gives_back_what_was_written) {
  const TempFolder folder;
  TokenTable all;
  TokenFolderWriter writer(folder.path());
  for (const Sample& sample : some_samples()) {
    TokenTable one;
    one.append(sample);
    writer.append(one);
    all.append(one);
  }
  writer.finish({.max_id = 7, .report = "three", .left_out = 2});
  const OpenedTokens opened = open_token_folder(folder.path());
  const auto in_memory = dataset_of(all, {});
  EXPECT_EQ(opened.info.report, "three");
  EXPECT_EQ(opened.info.left_out, 2);
  ASSERT_EQ(opened.dataset->size(), 3);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(opened.dataset->sample(i), some_samples()[static_cast<size_t>(i)]);
    EXPECT_EQ(in_memory->sample(i), opened.dataset->sample(i));
  }
}

TEST(TokenFolder, pairs_are_two_rows) {
  TokenTable table;
  const Sample pair{{.ids = {1}, .labels = {1}}, Sequence{.ids = {2, 3}, .labels = {2, 3}}};
  table.append(pair);
  table.append(pair);
  const auto dataset = dataset_of(std::move(table), {.pairs = true});
  ASSERT_EQ(dataset->size(), 2);
  EXPECT_EQ(dataset->sample(1), pair);
}

TEST(TokenFolder, damage_is_found) {
  const auto damaged = [](const std::string& name, const std::string& content) {
    const TempFolder folder;
    TokenFolderWriter writer(folder.path());
    TokenTable table;
    for (const Sample& sample : some_samples()) table.append(sample);
    writer.append(table);
    writer.finish({});
    std::ofstream(folder / name, std::ios::binary) << content;
    return error_of([&] { open_token_folder(folder.path()); });
  };
  expect_contains(damaged("ids.bin", "12345"), "ids.bin has 5 bytes");
  expect_contains(damaged("ids.bin", "1234"), "do not fit one another");
  expect_contains(damaged("row_ends.bin", std::string(24, '\x7f')), "do not fit one another");
  // Two pieces of -1 tokens, of very many.
  for (const char byte : {'\xff', '\x10'})
    expect_contains(damaged("pieces.bin", std::string(8, byte)), "do not fit one another");
  expect_contains(damaged("info.json", "{}"), "\"format\"");
  expect_contains(damaged("info.json", R"({"format": "megalith tokens", "version": 99})"), "another version");
  expect_contains(damaged("state.json", "{}"), "Python package `datasets`");
}

}  // namespace
}  // namespace megalith::data
