#include "megalith/layout/pipeline_transfers.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>

namespace megalith::layout {
namespace {

using Kind = PipelineAction::Kind;

std::vector<PipelineAction> compute_of(const PipelineShape& shape, int rank) {
  std::vector<PipelineAction> compute;
  for (const auto& a : pipeline_schedule(shape, rank).actions)
    if (a.is_compute()) compute.push_back(a);
  return compute;
}

// Every shape up to 6 stages, 3 chunks, 14 micro-batches that has a schedule.
std::vector<PipelineShape> shapes() {
  std::vector<PipelineShape> all;
  for (int pp = 1; pp <= 6; ++pp)
    for (int chunks = 1; chunks <= 3; ++chunks)
      for (int microbatches = 1; microbatches <= 14; ++microbatches)
        for (const auto kind :
             {ScheduleKind::kNone, ScheduleKind::kOneFOneB, ScheduleKind::kInterleaved, ScheduleKind::kZeroBubble})
          for (const bool forward_only : {false, true})
            for (const int group : {0, pp, pp + 1, 2 * pp}) {
              PipelineShape shape{
                  .kind = kind, .pp = pp, .chunks = chunks, .microbatches = microbatches, .forward_only = forward_only};
              if (group > 0) shape.group_size = group;
              if (group > 0 && kind != ScheduleKind::kInterleaved) continue;
              if (problems(shape).empty()) all.push_back(shape);
            }
  return all;
}

std::string text(const PipelineShape& shape) {
  return std::string(name(shape.kind)) + " pp " + std::to_string(shape.pp) + " chunks " + std::to_string(shape.chunks) +
         " micro-batches " + std::to_string(shape.microbatches) + " group " +
         std::to_string(shape.group_size.value_or(0)) + (shape.forward_only ? " forward only" : "");
}

// What must have been received before an action: (forward, micro-batch, chunk), or nothing.
bool needs(const PipelineShape& shape, int rank, const PipelineAction& a) {
  const int stage = a.chunk * shape.pp + rank, last = shape.chunks * shape.pp - 1;
  if (a.kind == Kind::kWeightGradient) return false;
  return stage != (a.kind == Kind::kForward ? 0 : last);
}

TEST(PipelineTransfers, EveryActionHasItsInputAndEveryOutputIsSentOnce) {
  for (const PipelineShape& shape : shapes()) {
    const auto plan = pipeline_transfers(shape);
    ASSERT_EQ(static_cast<int>(plan.size()), shape.pp) << text(shape);
    std::set<std::tuple<int, bool, int, int>> sent, received;  // receiving rank, direction, micro-batch, stage
    for (int rank = 0; rank < shape.pp; ++rank) {
      const auto compute = compute_of(shape, rank);
      const auto& exchanges = plan[static_cast<size_t>(rank)];
      ASSERT_EQ(exchanges.size(), compute.size() + 1) << text(shape);
      std::set<std::tuple<bool, int, int>> here;
      for (size_t i = 0; i < exchanges.size(); ++i) {
        for (const auto& t : exchanges[i]) {
          const int stage = t.chunk * shape.pp + rank;
          if (t.send) {
            // Of the action just before.
            ASSERT_GT(i, 0U);
            ASSERT_EQ(compute[i - 1].microbatch, t.microbatch) << text(shape);
            ASSERT_EQ(compute[i - 1].chunk, t.chunk) << text(shape);
            ASSERT_TRUE(sent.insert({t.peer, t.forward, t.microbatch, stage + (t.forward ? 1 : -1)}).second);
          } else {
            here.insert({t.forward, t.microbatch, t.chunk});
            ASSERT_TRUE(received.insert({rank, t.forward, t.microbatch, stage}).second);
          }
        }
        if (i < compute.size() && needs(shape, rank, compute[i])) {
          const auto& a = compute[i];
          ASSERT_TRUE(here.contains({a.kind == Kind::kForward, a.microbatch, a.chunk}))
              << text(shape) << " rank " << rank << " " << a.text();
        }
      }
    }
    EXPECT_EQ(sent, received) << text(shape);
  }
}

// Ranks that post a boundary's messages together and wait for all of them; a send ends only when it is received.
class Rendezvous {
 public:
  explicit Rendezvous(const std::vector<PipelineExchanges>& plan) : plan_(plan), at_(plan.size(), 0) {
    for (size_t rank = 0; rank < plan.size(); ++rank) post(rank);
  }

  // False: some rank waits forever. Messages that meet in another order than they were sent fail the test.
  bool run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < plan_.size(); ++rank)
        while (at_[rank] < plan_[rank].size() && complete(rank)) {
          moved = true;
          if (++at_[rank] < plan_[rank].size()) post(rank);
        }
    }
    for (size_t rank = 0; rank < plan_.size(); ++rank)
      if (at_[rank] < plan_[rank].size()) return false;
    return true;
  }

 private:
  using Channel = std::pair<int, int>;  // from, to
  void post(size_t rank) {
    for (const auto& t : plan_[rank][at_[rank]]) {
      const int self = static_cast<int>(rank);
      if (t.send)
        sends_[{self, t.peer}].push_back(t);
      else
        receives_[{t.peer, self}].push_back(t);
    }
  }
  // All messages that this rank has posted have met.
  bool complete(size_t rank) {
    for (auto& [channel, sends] : sends_) {
      auto& receives = receives_[channel];
      while (!sends.empty() && !receives.empty()) {
        EXPECT_EQ(sends.front().forward, receives.front().forward);
        EXPECT_EQ(sends.front().microbatch, receives.front().microbatch);
        sends.pop_front();
        receives.pop_front();
      }
    }
    const int self = static_cast<int>(rank);
    for (const auto& [channel, sends] : sends_)
      if (channel.first == self && !sends.empty()) return false;
    for (const auto& [channel, receives] : receives_)
      if (channel.second == self && !receives.empty()) return false;
    return true;
  }

  const std::vector<PipelineExchanges>& plan_;
  std::vector<size_t> at_;
  std::map<Channel, std::deque<PipelineTransfer>> sends_, receives_;
};

TEST(PipelineTransfers, NobodyWaitsForever) {
  for (const PipelineShape& shape : shapes()) {
    const auto plan = pipeline_transfers(shape);
    EXPECT_TRUE(Rendezvous(plan).run()) << text(shape);
  }
}

TEST(PipelineTransfers, NeighboursExchangeInOneBatchInTheSteadyStateOfOneFOneB) {
  const auto plan = pipeline_transfers({.kind = ScheduleKind::kOneFOneB, .pp = 4, .microbatches = 8});
  // Rank 1: two warm-up forwards, then F2 | send F2, receive the gradient of 0 | B0 | …
  const auto compute = compute_of({.kind = ScheduleKind::kOneFOneB, .pp = 4, .microbatches = 8}, 1);
  ASSERT_EQ(compute[2].text(), "F2.0");
  // Rank 0 is done with its next micro-batch by then, which rank 1 takes, too.
  const std::vector<PipelineTransfer> expected{{false, true, 0, 3, 0}, {true, true, 2, 2, 0}, {false, false, 2, 0, 0}};
  EXPECT_EQ(plan[1][3], expected);
}

}  // namespace
}  // namespace megalith::layout
