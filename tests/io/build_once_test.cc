// The names and guards of files that are built once: hashes, locks, and threads that share work.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/io/build_once.h"
#include "megalith/io/content_hash.h"
#include "megalith/io/parallel_for.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::io {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::expect_contains;
using testing::TempFolder;

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
}  // namespace megalith::io
