#include "megalith/checkpoint/run_folder.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/checkpoint/checkpoint_support.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::names_in;
using testing::TempFolder;

std::vector<StepFolder> steps(std::initializer_list<int64_t> numbers) {
  std::vector<StepFolder> all;
  for (const int64_t number : numbers) all.push_back({number, folder_name(number)});
  return all;
}

TEST(RunFolder, ListsCheckpointsByStep) {
  const TempFolder run;
  for (const char* name : {"checkpoint-10", "checkpoint-9", "checkpoint-9.tmp-save", "checkpoint-x", "checkpoint-07"})
    fs::create_directory(run / name);
  std::ofstream(run / "checkpoint-11") << "a file";
  EXPECT_EQ(list_checkpoints(run.path()),
            (std::vector<StepFolder>{{9, run / "checkpoint-9"}, {10, run / "checkpoint-10"}}));
  EXPECT_TRUE(list_checkpoints(run / "nowhere").empty());
}

TEST(RunFolder, TheTrackerNamesTheNewest) {
  const TempFolder run;
  EXPECT_EQ(read_tracker(run.path()), std::nullopt);
  fs::create_directory(run / "checkpoint-3");
  write_tracker(run / "checkpoint-3");
  EXPECT_EQ(read_tracker(run.path()), run / "checkpoint-3");
  EXPECT_EQ(latest_checkpoint(run.path()), run / "checkpoint-3");
  fs::remove(run / "checkpoint-3");
  expect_error<DataError>([&] { read_tracker(run.path()); }, {"latest", "checkpoint-3", "not there"});
  std::ofstream(run / "latest") << "release";
  expect_error<DataError>([&] { read_tracker(run.path()); }, {"latest", "release", "checkpoint-10"});
}

TEST(RunFolder, RemovesTheOldestButKeepsTheBest) {
  const auto all = steps({1, 2, 3, 4});
  EXPECT_TRUE(to_remove(all, {}).empty());
  EXPECT_TRUE(to_remove(all, {.total_limit = 0}).empty());
  EXPECT_EQ(to_remove(all, {.total_limit = 3}), (std::vector<fs::path>{"checkpoint-1"}));
  EXPECT_EQ(to_remove(all, {.total_limit = 1}),
            (std::vector<fs::path>{"checkpoint-1", "checkpoint-2", "checkpoint-3"}));
  EXPECT_EQ(to_remove(all, {.total_limit = {}, .retain_interval = 2}),
            (std::vector<fs::path>{"checkpoint-1", "checkpoint-3"}));
}

TEST(RunFolder, RotationLeavesNewestAndBest) {
  const TempFolder run;
  for (const char* name : {"checkpoint-1", "checkpoint-2", "checkpoint-3", "checkpoint-4", "other"})
    fs::create_directory(run / name);
  EXPECT_TRUE(rotate(run.path(), {.total_limit = 1, .retain_interval = {}, .best = run / "checkpoint-2"}).empty());
  EXPECT_EQ(names_in(run.path()), (std::vector<std::string>{"checkpoint-2", "checkpoint-4", "other"}));
}

TEST(RunFolder, LeftoversGo) {
  const TempFolder run;
  for (const char* name : {"checkpoint-1", "checkpoint-2.tmp-save", "checkpoint-1.tmp-removed", "mine.tmp-save"})
    fs::create_directory(run / name);
  remove_leftovers(run.path());
  EXPECT_EQ(names_in(run.path()), (std::vector<std::string>{"checkpoint-1", "mine.tmp-save"}));
}

}  // namespace
}  // namespace megalith::checkpoint
