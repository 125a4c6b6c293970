#include "megalith/train/layout_check.h"

#include <gtest/gtest.h>

#include <fstream>

#include "megalith/train/faults/norm_check.h"
#include "megalith/train/saving/save_check.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"

namespace megalith::train {
namespace {

using testing::Rank;
using testing::TempFolder;

parallel::ParallelContext context_of(const Rank& rank, layout::GridShape shape) {
  shape.world_size = rank.size;
  return {rank.world, layout::RankGrid(shape)};
}

std::vector<layout::GridShape> check_layouts() {
  return {{.world_size = 1},
          {.world_size = 2},
          {.world_size = 4, .tp = 2, .pp = 2},
          {.world_size = 4, .pp = 4},
          {.world_size = 4, .cp = 2},
          {.world_size = 8, .tp = 2, .ep = 2, .etp = 1},
          {.world_size = 8, .tp = 2, .pp = 2, .ep = 2},
          {.world_size = 4, .num_distributed_optimizer_instances = 2}};
}

TEST(NormCheck, IsRightInEveryLayout) {
  for (const layout::GridShape& shape : check_layouts())
    testing::run_ranks(shape.world_size, [&](const Rank& rank) {
      for (const std::string& problem : check_gradient_norm(context_of(rank, shape)))
        ADD_FAILURE() << "world " << shape.world_size << " tp " << shape.tp << " pp " << shape.pp << ": " << problem;
    });
}

TEST(SaveCheck, SavesLoadsAndLeavesNothing) {
  for (const layout::GridShape& shape : check_layouts()) {
    const TempFolder folder;
    testing::run_ranks(shape.world_size, [&](const Rank& rank) {
      const auto context = context_of(rank, shape);
      const std::vector<std::string> hosts(static_cast<size_t>(rank.size), "node0");
      const SaveCheck result = check_save_and_load(context, folder / "made", hosts);
      for (const std::string& problem : result.problems) ADD_FAILURE() << problem;
      if (rank.rank == 0) {
        EXPECT_GT(result.bytes, 100'000U);
      }
    });
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
}

TEST(SaveCheck, AFolderThatIsThereStays) {
  const TempFolder folder;
  std::ofstream(folder / "mine.txt") << "mine";
  testing::run_ranks(2, [&](const Rank& rank) {
    EXPECT_TRUE(check_save_and_load(context_of(rank, {}), folder.path(), {"node0", "node0"}).problems.empty());
  });
  EXPECT_TRUE(std::filesystem::exists(folder / "mine.txt"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(SaveCheck, NamesFoldersThatAreNotShared) {
  const TempFolder one, other;
  testing::run_ranks(2, [&](const Rank& rank) {
    const auto& folder = rank.rank == 0 ? one : other;
    const SaveCheck result = check_save_and_load(context_of(rank, {}), folder.path(), {"node0", "node0"});
    ASSERT_EQ(result.problems.size(), 1U);
    testing::expect_contains(result.problems[0], "is not the same folder on all machines");
    testing::expect_contains(result.problems[0], folder.path().string());
  });
  EXPECT_TRUE(std::filesystem::is_empty(one.path()));
  EXPECT_TRUE(std::filesystem::is_empty(other.path()));
}

TEST(LayoutCheck, ReportsEveryGroupOnRankZero) {
  const TempFolder folder;
  testing::run_ranks(4, [&](const Rank& rank) {
    std::vector<std::string> steps;
    LayoutCheckOptions options{.bytes = 4096, .folder = folder.path()};
    options.progress = [&](const std::string& step) { steps.push_back(step); };
    const LayoutReport report = check_layout(context_of(rank, {.tp = 2, .pp = 2}), options);
    for (const std::string& problem : report.problems()) ADD_FAILURE() << problem;
    EXPECT_TRUE(report.ok());
    std::set<std::string> names;
    for (const CheckOutcome& outcome : report.outcomes) {
      names.insert(outcome.name);
      EXPECT_GT(outcome.operations, 0) << outcome.name;
    }
    for (const char* name :
         {"group tp", "group pp", "group embedding", "group world", "gradient norm", "save and load"})
      EXPECT_TRUE(names.contains(name)) << name;
    EXPECT_EQ(report.pairs.size(), 6U);
    EXPECT_EQ(report.pair_summaries.size(), 1U);
    EXPECT_EQ(steps.empty(), rank.rank != 0);
    // Two tp groups with three operations each.
    EXPECT_EQ(std::ranges::count(report.links, "tp", &LinkRow::group), 6);
  });
}

TEST(LayoutCheck, TellsAllRanksOfTheProblemsOfOne) {
  const TempFolder one, other;
  testing::run_ranks(2, [&](const Rank& rank) {
    const auto& folder = rank.rank == 0 ? one : other;
    const LayoutReport report = check_layout(context_of(rank, {}), {.bytes = 4096, .folder = folder.path()});
    EXPECT_FALSE(report.ok());
    const std::vector<std::string> problems = report.problems();
    ASSERT_EQ(problems.size(), 2U);
    testing::expect_contains(problems[1], other.path().string());
    EXPECT_FALSE(report.links.empty()) << "a folder does not keep links from being measured";
  });
}

}  // namespace
}  // namespace megalith::train
