// What lies on disk: token folders, hashes that name them, and the one who builds.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/data/build_once.h"
#include "megalith/data/content_hash.h"
#include "megalith/data/parallel_for.h"
#include "megalith/data/token_table.h"
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
  writer.finish({.max_id = 7, .report = "three"});
  const OpenedTokens opened = open_token_folder(folder.path());
  const auto in_memory = dataset_of(all, {});
  EXPECT_EQ(opened.info.report, "three");
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

TEST(ContentHash, parts_and_order_count) {
  const auto hash = [](const std::vector<std::string>& parts) {
    ContentHash result;
    for (const std::string& part : parts) result.add(part);
    return result.text();
  };
  EXPECT_EQ(hash({"ab", "c"}), hash({"ab", "c"}));
  EXPECT_NE(hash({"ab", "c"}), hash({"a", "bc"}));
  EXPECT_NE(hash({"a", "b"}), hash({"b", "a"}));
  EXPECT_NE(hash({""}), hash({}));
  EXPECT_EQ(hash({"x"}).size(), 32U);
}

TEST(ContentHash, of_a_file_is_that_of_its_bytes) {
  const TempFolder folder;
  const std::string bytes(3'000'001, 'q');
  std::ofstream(folder / "f", std::ios::binary) << bytes;
  EXPECT_EQ(ContentHash().add_file(folder / "f").text(), ContentHash().add(bytes).text());
  EXPECT_THROW(ContentHash().add_file(folder / "none"), DataError);
}

TEST(BuildOnce, one_of_many_builds) {
  const TempFolder folder;
  std::atomic<int> builds{0}, built{0};
  std::vector<std::thread> ranks;
  for (int i = 0; i < 8; ++i)
    ranks.emplace_back([&] {
      built += build_once(folder / "target", [&] {
        ++builds;
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        std::ofstream(folder / "target") << "x";
      });
    });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(builds, 1);
  EXPECT_EQ(built, 1);
  EXPECT_FALSE(fs::exists(folder / "target.lock"));
}

TEST(BuildOnce, the_next_builds_after_a_failure) {
  const TempFolder folder;
  EXPECT_THROW(build_once(folder / "target", [] { throw DataError("full"); }), DataError);
  EXPECT_FALSE(fs::exists(folder / "target.lock"));
  EXPECT_TRUE(build_once(folder / "target", [&] { std::ofstream(folder / "target") << "x"; }));
}

TEST(BuildOnce, waiting_has_a_limit_that_names_the_lock) {
  const TempFolder folder;
  std::atomic<bool> started{false}, release{false};
  std::thread builder([&] {
    build_once(folder / "target", [&] {
      started = true;
      while (!release) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::ofstream(folder / "target") << "x";
    });
  });
  while (!started) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  expect_contains(error_of([&] { build_once(folder / "target", [] {}, {.limit = std::chrono::milliseconds(50)}); }),
                  "target.lock");
  release = true;
  builder.join();
}

TEST(ParallelFor, does_all_and_throws_the_first) {
  for (const int threads : {1, 2, 5}) {
    std::vector<int> done(1000, 0);
    parallel_for(1000, threads, [&](int64_t i) { ++done[static_cast<size_t>(i)]; });
    for (const int count : done) ASSERT_EQ(count, 1);
    expect_contains(error_of([&] {
                      parallel_for(100, threads, [](int64_t i) {
                        if (i % 7 == 3) throw DataError("item " + std::to_string(i));
                      });
                    }),
                    "item 3");
  }
  parallel_for(0, 4, [](int64_t) { FAIL(); });
}

}  // namespace
}  // namespace megalith::data
