#include "megalith/checkpoint/share_work.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace megalith::checkpoint {
namespace {

TEST(ShareWork, FewestHoldersFirstThenLargerToTheLeastLoaded) {
  // Key 1 is held by member 0 alone; 2, 3 and 4 by both.
  const std::vector<std::vector<ShareItem>> items{{{1, 10, true}, {2, 8, true}, {3, 5, true}, {4, 1, true}},
                                                  {{4, 1, false}, {2, 8, false}, {3, 5, false}}};
  EXPECT_EQ(share_work(items, 0), (std::vector<bool>{true, false, false, true}));
  EXPECT_EQ(share_work(items, 1), (std::vector<bool>{false, true, true}));
}

TEST(ShareWork, CopiesOfOtherGroupsAreNotWritten) {
  const std::vector<std::vector<ShareItem>> items{{{1, 10, false}, {2, 3, true}}, {{1, 10, false}}};
  EXPECT_EQ(share_work(items, 0), (std::vector<bool>{false, true}));
  EXPECT_EQ(share_work(items, 1), (std::vector<bool>{false}));
}

TEST(ShareWork, EachRectangleOnceAndTheLoadEven) {
  std::mt19937 random(3);
  for (int round = 0; round < 30; ++round) {
    const size_t members = 1 + random() % 7;
    std::vector<std::vector<ShareItem>> items(members);
    std::map<uint64_t, int> written;
    uint64_t total = 0, largest = 0;
    for (uint64_t key = 0; key < 200; ++key) {
      const uint64_t bytes = 1 + random() % 1000;
      for (size_t member = 0; member < members; ++member) items[member].push_back({key, bytes, member == 0});
      total += bytes;
      largest = std::max(largest, bytes);
    }
    for (size_t member = 0; member < members; ++member) {
      uint64_t load = 0;
      const std::vector<bool> writes = share_work(items, member);
      for (size_t i = 0; i < writes.size(); ++i)
        if (writes[i]) {
          ++written[items[member][i].key];
          load += items[member][i].bytes;
        }
      EXPECT_LE(load, total / members + largest);
    }
    EXPECT_EQ(written.size(), 200);
    for (const auto& [key, times] : written) EXPECT_EQ(times, 1) << key;
  }
}

}  // namespace
}  // namespace megalith::checkpoint
