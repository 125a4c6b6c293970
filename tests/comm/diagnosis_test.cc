// The message of an operation that has not ended, from the statuses of made-up ranks: who has not arrived, and with
// what last words. Without processes.
#include "megalith/comm/diagnosis.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "megalith/comm/op/op_recorder.h"

namespace megalith::comm {
namespace {

TimeoutFacts facts() {
  TimeoutFacts facts;
  facts.world_rank = 0;
  facts.group = {"tp:0,1,2,3", "tp", {0, 1, 2, 3}, 0};
  facts.op.kind = OpKind::kAllReduce;
  facts.op.label = "loss";
  facts.op.sequence = 12;
  facts.limit = std::chrono::seconds(5);
  facts.now = 1000;
  facts.status[1] = {1, 999.5, "in all_reduce 'loss' #12 of tp for 4.1 s", {{"tp:0,1,2,3", 12}}};
  facts.status[2] = {2, 999.5, "finished all_gather 'x' #11 of tp 6.0 s ago", {{"tp:0,1,2,3", 11}}};
  return facts;
}

TEST(Diagnosis, WhoHasNotArrived) { EXPECT_EQ(ranks_not_arrived(facts()), (std::vector<int>{2, 3})); }

TEST(Diagnosis, WhatTheBackendKnowsGoesFirst) {
  TimeoutFacts known = facts();
  known.missing = {3};
  EXPECT_EQ(ranks_not_arrived(known), std::vector<int>{3});
}

TEST(Diagnosis, TheMessageTellsTheOperationTheRanksAndTheirLastWords) {
  const std::string text = describe_timeout(facts());
  for (const char* part : {"rank 0: all_reduce 'loss' #12", "group tp (ranks 0, 1, 2 and 3)", "within 5 s",
                           "Ranks have not arrived: 2 and 3", "rank 2: finished all_gather 'x' #11 of tp 6.0 s ago",
                           "rank 3: has never been heard from", "--ddp_timeout"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in:\n" << text;
}

TEST(Diagnosis, ASilentRankIsCalledDead) {
  TimeoutFacts old = facts();
  old.status[2].posted_at = 960;
  EXPECT_NE(describe_timeout(old).find("silent for 40 s: dead or frozen"), std::string::npos);
}

TEST(Diagnosis, WhenAllArrivedTheNetworkIsToBlame) {
  TimeoutFacts all = facts();
  all.status[2].begun["tp:0,1,2,3"] = 12;
  all.status[3] = {3, 999.5, "in all_reduce", {{"tp:0,1,2,3", 12}}};
  EXPECT_NE(describe_timeout(all).find("All ranks arrived"), std::string::npos);
}

// A rank that dies inside an operation has begun it; its silence gives it away.
TEST(Diagnosis, ARankThatFallsSilentAmongArrivedOnesIsNamed) {
  TimeoutFacts all = facts();
  all.status[2] = {2, 960, "in all_reduce 'loss' #12 of tp for 0.1 s", {{"tp:0,1,2,3", 12}}};
  all.status[3] = {3, 999.5, "in all_reduce", {{"tp:0,1,2,3", 12}}};
  const std::string text = describe_timeout(all);
  for (const char* part :
       {"All ranks arrived, and then one fell silent: 2.", "silent for 40 s: dead or frozen", "Look at rank 2 first"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in:\n" << text;
  EXPECT_EQ(text.find("rank 3"), std::string::npos) << text;
}

TEST(Diagnosis, StatusSurvivesTheStore) {
  RankStatus before = facts().status[2];
  before.operations["tp:0,1,2,3"] = {11, {4000000000, 7}};
  const RankStatus after = RankStatus::from_json(before.to_json());
  EXPECT_EQ(after.rank, before.rank);
  EXPECT_EQ(after.last, before.last);
  EXPECT_EQ(after.begun, before.begun);
  ASSERT_TRUE(after.operations.contains("tp:0,1,2,3"));
  EXPECT_EQ(after.operations.at("tp:0,1,2,3").last, 11u);
  EXPECT_EQ(after.operations.at("tp:0,1,2,3").digests, (std::vector<uint32_t>{4000000000, 7}));
}

TEST(OpRecorder, TellsWhatIsAndWhatWas) {
  const GroupInfo group{"tp:0,1", "tp", {0, 1}, 0};
  OpRecorder recorder;
  EXPECT_EQ(recorder.status(0).last, "started, no operation yet");
  Op op{.kind = OpKind::kBarrier, .label = "step", .sequence = 3};
  const uint64_t record = recorder.begin(group, op);
  EXPECT_NE(recorder.status(0).last.find("in barrier 'step' #3 of tp"), std::string::npos);
  EXPECT_EQ(recorder.status(0).begun.at("tp:0,1"), 3u);
  recorder.end(record);
  EXPECT_NE(recorder.status(0).last.find("finished barrier 'step' #3 of tp"), std::string::npos);
  for (int i = 0; i < 100; ++i) recorder.end(recorder.begin(group, op));
  EXPECT_EQ(recorder.recent().size(), 64u);
}

// An operation of a stream: nobody on the host waits for it, and it ends when it ends.
class StreamOp : public PendingOp {
 public:
  bool wait_for(std::chrono::milliseconds) override { return true; }
  bool done() override { return done_; }
  void abort(const std::string&) override {}
  bool runs_behind() const override { return true; }
  std::shared_ptr<Completion> arrival() override { return arrival_; }
  void reach() { arrival_->passed = true; }
  void finish() { done_ = true; }

 private:
  struct Arrival : Completion {
    bool done() override { return passed; }
    bool passed = false;
  };
  std::shared_ptr<Arrival> arrival_ = std::make_shared<Arrival>();
  bool done_ = false;
};

TEST(OpRecorder, KeepsAnEyeOnWhatRunsBehind) {
  const GroupInfo group{"dp:0,1", "dp", {0, 1}, 0};
  OpRecorder recorder;
  const auto pending = std::make_shared<StreamOp>();
  recorder.end_when_done(recorder.begin(group, Op{.kind = OpKind::kAllReduce, .sequence = 1}), pending);
  EXPECT_EQ(recorder.in_flight().size(), 1u);
  EXPECT_NE(recorder.status(0).last.find("in all_reduce #1, sum of dp"), std::string::npos);
  pending->finish();
  EXPECT_EQ(recorder.in_flight().size(), 0u);
  EXPECT_NE(recorder.status(0).last.find("finished all_reduce #1 of dp"), std::string::npos);
}

// The host may be hundreds of operations ahead of the device.
TEST(OpRecorder, HoldsNoTensorsAndEndsWhatTheDeviceHasPassed) {
  const GroupInfo group{"tp:0,1", "tp", {0, 1}, 0};
  OpRecorder recorder;
  std::vector<std::shared_ptr<StreamOp>> ops;
  at::Tensor tensor = at::ones({2});
  for (uint64_t i = 1; i <= 300; ++i) {
    ops.push_back(std::make_shared<StreamOp>());
    recorder.end_when_done(recorder.begin(group, Op{.kind = OpKind::kAllReduce, .output = tensor, .sequence = i}),
                           ops.back());
  }
  EXPECT_EQ(tensor.use_count(), 1u);
  EXPECT_EQ(recorder.in_flight().size(), 300u);
  for (size_t i = 0; i < 299; ++i) ops[i]->finish();
  EXPECT_EQ(recorder.in_flight().size(), 1u);
  EXPECT_EQ(ops[298].use_count(), 1);
  ops[299]->finish();
  EXPECT_EQ(recorder.in_flight().size(), 0u);
}

// A kernel that hangs before an operation: this rank has not arrived, although its host continued long ago.
TEST(OpRecorder, ARankWhoseDeviceComputesHasNotArrived) {
  const GroupInfo group{"tp:0,1", "tp", {0, 1}, 0};
  OpRecorder recorder;
  std::vector<std::shared_ptr<StreamOp>> ops;
  for (uint64_t i = 1; i <= 3; ++i) {
    const auto record = recorder.begin(group, Op{.kind = OpKind::kAllReduce, .label = "x", .sequence = i});
    ops.push_back(std::make_shared<StreamOp>());
    recorder.started(record, ops.back());
    recorder.end_when_done(record, ops.back());
  }
  ops[0]->reach();
  ops[0]->finish();
  EXPECT_EQ(recorder.status(0).begun.at("tp:0,1"), 1u);
  EXPECT_NE(recorder.status(0).last.find("computing on the device, before all_reduce 'x' #2"), std::string::npos);
  ops[1]->reach();
  EXPECT_EQ(recorder.status(0).begun.at("tp:0,1"), 2u);
  EXPECT_NE(recorder.status(0).last.find("in all_reduce 'x' #2"), std::string::npos);
}

// The queue of a stuck device is full: the host cannot hand over the next operation, and it is in another group.
TEST(OpRecorder, AnOperationThatTheHostCannotHandOverHasNotArrived) {
  const GroupInfo tp{"tp:0,1", "tp", {0, 1}, 0}, dp{"dp:0,2", "dp", {0, 2}, 0};
  OpRecorder recorder;
  recorder.begin(dp, Op{.kind = OpKind::kAllReduce, .label = "grads", .sequence = 7});
  EXPECT_EQ(recorder.status(0).begun.at("dp:0,2"), 7u);  // it waits for the others to connect, say

  OpRecorder stuck;
  const auto computing = std::make_shared<StreamOp>();
  const auto record = stuck.begin(tp, Op{.kind = OpKind::kAllReduce, .label = "x", .sequence = 1});
  stuck.started(record, computing);
  stuck.end_when_done(record, computing);
  stuck.begin(dp, Op{.kind = OpKind::kAllReduce, .label = "grads", .sequence = 7});
  EXPECT_EQ(stuck.status(0).begun.at("dp:0,2"), 6u);
  EXPECT_EQ(stuck.status(0).begun.at("tp:0,1"), 0u);
}

TEST(OpRecorder, OperationsWaitedForOutOfOrderAllEnd) {
  const GroupInfo group{"dp:0,1", "dp", {0, 1}, 0};
  OpRecorder recorder;
  const auto first = recorder.begin(group, Op{.kind = OpKind::kAllReduce, .sequence = 1});
  const auto second = recorder.begin(group, Op{.kind = OpKind::kAllReduce, .sequence = 2});
  const auto a = std::make_shared<StreamOp>(), b = std::make_shared<StreamOp>();
  recorder.end_when_done(second, b);
  recorder.end_when_done(first, a);
  b->finish();
  a->finish();
  EXPECT_EQ(recorder.in_flight().size(), 0u);
}

}  // namespace
}  // namespace megalith::comm
