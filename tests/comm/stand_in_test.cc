// Stand-ins for other ranks: their results, and the time that they take by a clock of the test.
#include "megalith/comm/backend/stand_in.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/comm/world.h"

namespace megalith::comm {
namespace {

// Stands still except in wait_until and advance.
class ManualClock : public StandInClock {
 public:
  explicit ManualClock(std::shared_ptr<double> time) : time_(std::move(time)) {}
  double now() override { return *time_; }
  void wait_until(double time) override { *time_ = std::max(*time_, time); }

 private:
  const std::shared_ptr<double> time_;
};

// A rank among stand-ins whose operations last `lasts` seconds, with messages sent at `sent`.
struct Stage {
  std::shared_ptr<double> time = std::make_shared<double>(100);
  std::shared_ptr<StandIns> others;
  std::unique_ptr<World> world;

  Stage(int rank, int size, double lasts = 0, double sent = 0) {
    others =
        std::make_shared<StandIns>(StandInTimes{.lasts = [lasts](const GroupInfo&, const OpInfo&) { return lasts; },
                                                .sent = [sent](const GroupInfo&, const OpInfo&) { return sent; }},
                                   make_host_stand_ins(std::make_unique<ManualClock>(time)));
    world = World::rehearse(rank, size, {}, others);
  }
  Group group() const { return world->world(); }
};

TEST(StandIn, MembersHoldWhatThisRankHolds) {
  const Stage stage(1, 3);
  const Group group = stage.group();
  at::Tensor x = at::tensor({1.0F, 2.0F});
  group.all_reduce(x);
  EXPECT_TRUE(at::equal(x, at::tensor({3.0F, 6.0F})));
  group.all_reduce(x, ReduceOp::kAvg);
  group.all_reduce(x, ReduceOp::kMax);
  EXPECT_TRUE(at::equal(x, at::tensor({3.0F, 6.0F})));

  at::Tensor all = at::zeros({6});
  group.all_gather(all, x);
  EXPECT_TRUE(at::equal(all, at::tensor({3.0F, 6.0F, 3.0F, 6.0F, 3.0F, 6.0F})));
  at::Tensor in_place = at::arange(6, at::kFloat);
  group.all_gather(in_place, in_place.narrow(0, 2, 2));
  EXPECT_TRUE(at::equal(in_place, at::tensor({2.0F, 3.0F, 2.0F, 3.0F, 2.0F, 3.0F})));

  at::Tensor scattered = at::zeros({2});
  group.reduce_scatter(scattered, at::arange(6, at::kFloat));
  EXPECT_TRUE(at::equal(scattered, at::tensor({6.0F, 9.0F})));
  at::Tensor blocks = at::arange(6, at::kLong);
  group.reduce_scatter(blocks.narrow(0, 2, 2), blocks);
  EXPECT_TRUE(at::equal(blocks, at::tensor({0, 1, 6, 9, 4, 5}, at::kLong)));
}

// Counts are exchanged first: everybody sends what this rank keeps, so that the rows agree with them.
TEST(StandIn, ExchangesAreBalancedAsTheRankIs) {
  const Stage stage(1, 2);
  const Group group = stage.group();
  const at::Tensor sent_counts = at::tensor({1, 3}, at::kLong);
  at::Tensor counts = at::zeros({2}, at::kLong);
  group.all_to_all(counts, sent_counts);
  EXPECT_TRUE(at::equal(counts, at::tensor({3, 3}, at::kLong)));
  at::Tensor rows = at::zeros({6, 1});
  group.all_to_all(rows, at::arange(4, at::kFloat).view({4, 1}), {3, 3}, {1, 3});
  EXPECT_TRUE(at::equal(rows.view(-1), at::tensor({1.0F, 2.0F, 3.0F, 1.0F, 2.0F, 3.0F})));
  EXPECT_EQ(group.all_gather_bytes("abc"), (std::vector<std::string>{"abc", "abc"}));
}

TEST(StandIn, MessagesAreFiniteAndDiffer) {
  const Stage stage(0, 2);
  at::Tensor hidden = at::full({64, 8}, NAN);
  stage.group().recv(hidden, 1);
  EXPECT_TRUE(hidden.isfinite().all().item<bool>());
  EXPECT_FALSE(at::equal(hidden[0], hidden[1]));
  EXPECT_LE(hidden.abs().max().item<float>(), 0.02F);
  stage.group().send(hidden, 1);
}

TEST(StandIn, OnlyTimeThatNothingHidesIsExposed) {
  const Stage stage(0, 4, /*lasts=*/2);
  const at::Tensor x = at::zeros({8});
  stage.group().all_reduce(x);  // nothing beside it
  EXPECT_DOUBLE_EQ(*stage.time, 102);
  Work first = stage.group().all_reduce_async(x), second = stage.group().all_reduce_async(x);
  *stage.time += 3;  // the rank computes; the second operation follows the first and ends at 106
  first.wait();
  EXPECT_DOUBLE_EQ(*stage.time, 105);
  second.wait();
  EXPECT_DOUBLE_EQ(*stage.time, 106);
  const auto waits = stage.others->take_waits();
  EXPECT_DOUBLE_EQ(waits.at("world").exposed, 3);
  EXPECT_DOUBLE_EQ(waits.at("world").for_peers, 0);
  EXPECT_TRUE(stage.others->take_waits().empty());
}

TEST(StandIn, LateMessagesAreNotExposedCommunication) {
  const Stage stage(0, 2, /*lasts=*/1, /*sent=*/5);
  stage.others->begin_step();
  *stage.time += 2;
  const at::Tensor x = at::zeros({8});
  stage.group().batch({{OpKind::kSend, x, 1}, {OpKind::kRecv, x, 1}});
  EXPECT_DOUBLE_EQ(*stage.time, 106);  // sent 5 seconds after the step began, and 1 on its way
  const auto waits = stage.others->take_waits();
  EXPECT_DOUBLE_EQ(waits.at("world").for_peers, 3);
  EXPECT_DOUBLE_EQ(waits.at("world").exposed, 1);
}

TEST(StandIn, OperationsAreCountedByGroupAndKind) {
  const Stage stage(2, 4);
  const Group pair = stage.world->group("pair", {2, 3});
  const at::Tensor x = at::zeros({8});
  at::Tensor all = at::zeros({16});
  pair.all_gather(all, x);
  pair.all_gather(all, x);
  pair.send(x, 1);
  stage.group().barrier();
  const std::vector<OpTotal> expected{
      {"pair", OpKind::kAllGather, 2, 128}, {"pair", OpKind::kSend, 1, 32}, {"world", OpKind::kBarrier, 1, 0}};
  EXPECT_EQ(stage.world->operation_totals(), expected);
}

}  // namespace
}  // namespace megalith::comm
