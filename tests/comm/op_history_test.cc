#include "megalith/comm/op/op_history.h"

#include <gtest/gtest.h>

#include "megalith/comm/op/op.h"
#include "tests/support/expect.h"

namespace megalith::comm {
namespace {

OpInfo sum_of(int64_t elements) {
  OpInfo op;
  op.kind = OpKind::kAllReduce;
  op.label = "grads";
  op.dtype = at::kFloat;
  op.sizes = {elements};
  return op;
}

OpHistory history(int operations, int odd = 0, const OpInfo& instead = sum_of(5)) {
  OpHistory history;
  for (int i = 1; i <= operations; ++i) {
    OpInfo op = i == odd ? instead : sum_of(4);
    op.sequence = static_cast<uint64_t>(i);
    history.add(op);
  }
  return history;
}

OpExcerpt posted(const OpHistory& history) { return history.excerpt(OpHistory::kPosted); }
OpExcerpt kept(const OpHistory& history) { return history.excerpt(OpHistory::kKept); }

TEST(OpHistory, EqualHistoriesAgree) {
  EXPECT_FALSE(find_split({{0, posted(history(40))}, {1, posted(history(40))}}, true));
  EXPECT_FALSE(find_split({{0, OpExcerpt{}}, {1, OpExcerpt{}}}, true));
}

TEST(OpHistory, EverythingThatMembersMustAgreeOnCounts) {
  std::vector<OpInfo> others(4, sum_of(4));
  others[0].kind = OpKind::kBarrier;
  others[1].dtype = at::kBFloat16;
  others[2].reduce = ReduceOp::kMax;
  others[3].sizes = {8};
  for (const OpInfo& other : others) {
    const auto split = find_split({{0, posted(history(3))}, {1, posted(history(3, 2, other))}}, false);
    ASSERT_TRUE(split) << other.describe();
    EXPECT_EQ(split->sequence, 2u);
    EXPECT_TRUE(split->exact);
  }
  OpInfo from_0, from_1;
  from_0.kind = from_1.kind = OpKind::kBroadcast;
  from_0.peer = 0;
  from_1.peer = 1;
  EXPECT_TRUE(find_split({{0, posted(history(1, 1, from_0))}, {1, posted(history(1, 1, from_1))}}, false));
}

TEST(OpHistory, WhatMayDifferDoesNotCount) {
  OpInfo named = sum_of(4), shaped = sum_of(4);
  named.label = "other words";
  shaped.sizes = {2, 2};
  EXPECT_FALSE(find_split({{0, posted(history(2))}, {1, posted(history(2, 2, named))}}, true));
  EXPECT_FALSE(find_split({{0, posted(history(2))}, {1, posted(history(2, 1, shaped))}}, true));
  OpInfo three_rows, five_rows;  // members of an all-to-all get and give what they like
  three_rows.kind = five_rows.kind = OpKind::kAllToAll;
  three_rows.sizes = {3, 4};
  five_rows.sizes = {5, 4};
  EXPECT_FALSE(find_split({{0, posted(history(2, 1, three_rows))}, {1, posted(history(2, 1, five_rows))}}, true));
}

TEST(OpHistory, TheFewerAreNamed) {
  const auto split = find_split({{4, posted(history(9))}, {5, posted(history(9, 8))}, {6, posted(history(8))}}, false);
  ASSERT_TRUE(split);
  EXPECT_EQ(split->sequence, 8u);
  EXPECT_EQ(split->fewer, std::vector<int>{5});
  EXPECT_EQ(split->others, (std::vector<int>{4, 6}));
}

// A status is half a second old: what its rank had started then is compared with what this one kept.
TEST(OpHistory, AnOldStatusIsComparedWithWhatIsKept) {
  EXPECT_FALSE(find_split({{0, kept(history(1900))}, {1, posted(history(300))}}, false));
  const auto split = find_split({{0, kept(history(1900))}, {1, posted(history(300, 295))}}, false);
  ASSERT_TRUE(split);
  EXPECT_EQ(split->sequence, 295u);
  EXPECT_TRUE(split->exact);
}

TEST(OpHistory, ADifferenceLongAgoIsStillSeen) {
  const auto split = find_split({{0, kept(history(5000))}, {1, posted(history(5000, 7))}}, false);
  ASSERT_TRUE(split);
  EXPECT_EQ(split->sequence, 5000u - OpHistory::kPosted + 1);
  EXPECT_FALSE(split->exact);
  EXPECT_EQ(history(5000).find(5000 - OpHistory::kKept), nullptr);
  EXPECT_NE(history(5000).find(5000 - OpHistory::kKept + 1), nullptr);
}

TEST(OpHistory, AnOperationThatSomeHaveNotStartedIsADifferenceAtTheEndOnly) {
  const std::map<int, OpExcerpt> members{{0, posted(history(12))}, {1, posted(history(12))}, {2, posted(history(11))}};
  EXPECT_FALSE(find_split(members, false));
  const auto split = find_split(members, true);
  ASSERT_TRUE(split);
  EXPECT_EQ(split->sequence, 12u);
  EXPECT_EQ(split->fewer, std::vector<int>{2});
}

TEST(OpHistory, TheMessageNamesRanksGroupAndOperation) {
  const OpHistory own = history(12);
  const OpSplit split{12, true, {2}, {0, 1}};
  const std::string exact = describe_split(split, "tp", 0, own.find(12));
  for (const char* part : {"rank 2 of group tp has not started the same operations as ranks 0 and 1: #12 differs",
                           "rank 0: all_reduce 'grads' #12, float [4], sum", "MEGALITH_COMM_DEBUG=1"})
    testing::expect_contains(exact, part);
  const std::string vague = describe_split({12, false, {2, 3}, {0, 1}}, "tp", 0, nullptr);
  for (const char* part : {"ranks 2 and 3 of group tp have not", "one at or before #12 differs"})
    testing::expect_contains(vague, part);
}

}  // namespace
}  // namespace megalith::comm
