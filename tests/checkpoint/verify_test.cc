#include "megalith/checkpoint/verify.h"

#include <gtest/gtest.h>

#include "megalith/checkpoint/run_folder.h"
#include "tests/checkpoint/checkpoint_support.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::expect_contains;
using testing::expect_error;
using testing::TempFolder;

// By three ranks, on all the same.
std::vector<std::string> problems_in(const fs::path& folder) {
  std::vector<std::string> problems;
  testing::run_ranks(3, [&](const testing::Rank& rank) {
    const parallel::ParallelContext context(rank.world, layout::RankGrid({.world_size = 3}));
    const auto mine = verify(folder, context);
    if (rank.rank == 2) problems = mine;
  });
  return problems;
}

ResumeChoice choose(const std::string& wanted, const fs::path& run) {
  ResumeChoice choice;
  testing::run_ranks(2, [&](const testing::Rank& rank) {
    const parallel::ParallelContext context(rank.world, layout::RankGrid({.world_size = 2}));
    const ResumeChoice mine = choose_checkpoint(wanted, run, context);
    if (rank.rank == 1) choice = mine;
  });
  return choice;
}

TEST(Verify, NamesWhatIsBroken) {
  const TempFolder run;
  const fs::path folder = run / "checkpoint-1";
  testing::save_small(folder);
  EXPECT_TRUE(problems_in(folder).empty());

  testing::flip_byte(folder / "model.safetensors", 200);
  auto problems = problems_in(folder);
  ASSERT_EQ(problems.size(), 1);
  expect_contains(problems[0], "model.safetensors: bytes 0 to ");
  expect_contains(problems[0], "were changed");
  testing::flip_byte(folder / "model.safetensors", 200);
  EXPECT_TRUE(problems_in(folder).empty());

  fs::resize_file(folder / "notes.txt", 2);
  fs::remove(folder / "rng.safetensors");
  problems = problems_in(folder);
  ASSERT_EQ(problems.size(), 2);
  expect_contains(problems[0], "notes.txt has 2 bytes; it was written with 6");
  expect_contains(problems[1], "rng.safetensors is missing");

  testing::flip_byte(folder / "manifest.json", 100);
  EXPECT_EQ(problems_in(folder).size(), 1);
}

TEST(Verify, SharesOfChunksCoverAFileOnce) {
  const TempFolder folder;
  std::ofstream(folder / "a") << std::string(10, 'x');
  std::ofstream(folder / "b") << std::string(10, 'y');
  const Manifest wrong{.step = 1, .layout = {}, .holds = {}, .files = {{"a", 10, {0}}, {"b", 10, {0}}}};
  for (const uint64_t shares : {1, 2, 5}) {
    size_t found = 0;
    for (uint64_t share = 0; share < shares; ++share)
      found += problems_of_content(folder.path(), wrong, share, shares).size();
    EXPECT_EQ(found, 2) << shares;
  }
}

TEST(FindCheckpoint, ByWordsAndPaths) {
  const TempFolder run;
  EXPECT_EQ(find_checkpoint("false", run.path()), std::nullopt);
  EXPECT_EQ(find_checkpoint("auto", run.path()), std::nullopt);
  expect_error<ConfigError>([&] { find_checkpoint("true", run.path()); }, {"resume_from_checkpoint", "no checkpoint"});
  expect_error<ConfigError>([&] { find_checkpoint("nowhere", run.path()); }, {"nowhere", "not a folder"});
  fs::create_directory(run / "empty");
  expect_error<DataError>([&] { find_checkpoint((run / "empty").string(), run.path()); }, {"empty", "manifest.json"});
  testing::save_small(run / "checkpoint-2", 2);
  testing::save_small(run / "checkpoint-1", 1);
  EXPECT_EQ(find_checkpoint("latest", run.path()), run / "checkpoint-1") << "what was saved last";
  EXPECT_EQ(find_checkpoint("auto", run.path()), run / "checkpoint-2");
  EXPECT_EQ(find_checkpoint((run / "checkpoint-2").string(), "elsewhere"), run / "checkpoint-2");
  EXPECT_EQ(find_checkpoint(run.path().string(), "elsewhere"), run / "checkpoint-1");
}

TEST(ChooseCheckpoint, AutoSkipsWhatIsBroken) {
  const TempFolder run;
  EXPECT_EQ(choose("auto", run.path()).folder, std::nullopt);
  for (const int64_t step : {1, 2, 3}) testing::save_small(run / folder_name(step), step);
  testing::flip_byte(run / "checkpoint-3" / "model.safetensors", 300);
  fs::remove(run / "checkpoint-2" / "manifest.json");
  const ResumeChoice choice = choose("auto", run.path());
  EXPECT_EQ(choice.folder, run / "checkpoint-1");
  ASSERT_EQ(choice.skipped.size(), 2);
  expect_contains(choice.skipped[0], "checkpoint-3 is broken");
  expect_contains(choice.skipped[1], "checkpoint-2 is broken");
  const TempFolder single;
  const Manifest manifest = read_manifest(run / "checkpoint-1");
  EXPECT_EQ(manifest.step, 1);
  EXPECT_EQ(manifest.layout.tp, 2);
  testing::run_ranks(2, [&](const testing::Rank& rank) {
    const parallel::ParallelContext context(rank.world, layout::RankGrid({.world_size = 2}));
    expect_error<DataError>([&] { choose_checkpoint("latest", run.path(), context); },
                            {"checkpoint-3 is broken", "model.safetensors", "auto"});
  });
}

}  // namespace
}  // namespace megalith::checkpoint
