#include "megalith/parallel/group_check.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"

namespace megalith::parallel {
namespace {

using testing::Rank;

TEST(GroupCheck, FindsNothingInRightGroups) {
  for (const int size : {2, 3, 5})
    testing::run_ranks(size, [&](const Rank& rank) {
      for (const int round : {0, 1}) {
        const GroupCheck result = check_group(rank.world.world(), at::kCPU, round);
        for (const WrongAnswer& wrong : result.wrong) ADD_FAILURE() << wrong.in_words();
        EXPECT_GT(result.operations, 40);
      }
    });
}

TEST(GroupCheck, FindsNothingInRightGroupsOverGloo) {
  testing::run_gloo_ranks(3, [&](const Rank& rank) {
    const std::vector<int> pair{0, 2};
    if (rank.rank != 1) {
      const GroupCheck result = check_group(rank.world.group("tp", pair), at::kCPU);
      for (const WrongAnswer& wrong : result.wrong) ADD_FAILURE() << wrong.in_words();
    }
    for (const WrongAnswer& wrong : check_group(rank.world.world(), at::kCPU).wrong) ADD_FAILURE() << wrong.in_words();
  });
}

// A rank with the data of another round is one whose data was changed on the way.
TEST(GroupCheck, NamesGroupOperationAndRankOfWrongAnswers) {
  std::mutex mutex;
  std::set<std::string> operations;
  testing::run_ranks(3, [&](const Rank& rank) {
    const GroupCheck result = check_group(rank.world.world(), at::kCPU, rank.rank == 2 ? 1 : 0);
    ASSERT_FALSE(result.wrong.empty());
    for (const WrongAnswer& wrong : result.wrong) {
      EXPECT_EQ(wrong.rank, rank.rank);
      EXPECT_EQ(wrong.ranks, (std::vector<int>{0, 1, 2}));
      testing::expect_contains(wrong.in_words(), wrong.operation + " in group world (ranks 0, 1 and 2), on rank");
      const std::lock_guard lock(mutex);
      operations.insert(wrong.operation);
    }
  });
  for (const char* type : {"float32", "bfloat16", "int64"})
    for (const char* operation : {"all_reduce(sum)", "all_reduce(max)", "all_reduce(min)", "reduce_scatter(sum)"})
      EXPECT_TRUE(operations.contains(fmt::format("{} of {}", operation, type))) << operation << " of " << type;
  for (const char* type : {"float32", "bfloat16", "int64", "bytes"})
    for (const char* operation : {"all_gather of {}", "all_to_all of {}", "all_to_all with unequal blocks of {}",
                                  "broadcast of {} from group rank 2", "send and recv of {} from group rank 2",
                                  "batch of transfers of {} from group rank 2"})
      EXPECT_TRUE(operations.contains(fmt::format(fmt::runtime(operation), type))) << operation << " " << type;
  for (const char* operation : {"all_gather_bytes", "broadcast_bytes", "all_reduce(avg) of bfloat16"})
    EXPECT_TRUE(operations.contains(operation)) << operation;
}

}  // namespace
}  // namespace megalith::parallel
