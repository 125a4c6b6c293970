// The messages between pipeline stages, over every shape up to 6 stages: each input arrives, each output is sent once,
// and no order of connections and kernels that ranks allow makes them wait forever, by simulation.
#include "megalith/layout/pipeline_transfers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
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
              shape.paired = true;
              if (!forward_only && problems(shape).empty()) all.push_back(shape);
            }
  return all;
}

std::string text(const PipelineShape& shape) {
  return std::string(name(shape.kind)) + " pp " + std::to_string(shape.pp) + " chunks " + std::to_string(shape.chunks) +
         " micro-batches " + std::to_string(shape.microbatches) + " group " +
         std::to_string(shape.group_size.value_or(0)) + (shape.forward_only ? " forward only" : "") +
         (shape.paired ? " in pairs" : "");
}

// Returns whether an action needs a message from another stage first.
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
            // The message of the action just before, or of the first of a pair.
            ASSERT_GT(i, 0U);
            const bool ahead = i > 1 && t.forward && compute[i - 2].with_next;
            ASSERT_EQ(compute[i - (ahead ? 2 : 1)].microbatch, t.microbatch) << text(shape);
            ASSERT_EQ(compute[i - (ahead ? 2 : 1)].chunk, t.chunk) << text(shape);
            ASSERT_TRUE(sent.insert({t.peer, t.forward, t.microbatch, stage + (t.forward ? 1 : -1)}).second);
          } else {
            here.insert({t.forward, t.microbatch, t.chunk});
            ASSERT_TRUE(received.insert({rank, t.forward, t.microbatch, stage}).second);
          }
        }
        const bool inside = i > 0 && i < compute.size() && compute[i - 1].with_next;
        ASSERT_TRUE(!inside || exchanges[i].empty()) << "messages inside a pair: " << text(shape);
        const size_t next = i < compute.size() && compute[i].with_next ? 2 : 1;  // a pair needs both of its inputs
        for (size_t n = i; n < std::min(i + next, compute.size()); ++n) {
          const auto& a = compute[n];
          if (!needs(shape, rank, a)) continue;
          ASSERT_TRUE(here.contains({a.kind == Kind::kForward, a.microbatch, a.chunk}))
              << text(shape) << " rank " << rank << " " << a.text();
        }
      }
    }
    EXPECT_EQ(sent, received) << text(shape);
  }
}

// Properties of a simulated transport beyond moving messages.
struct Transport {
  bool lanes = false;             // forward and backward messages on connections of their own
  bool connects_in_post = false;  // a pair connects in a direction at its first message, and the post waits for that
  bool loads_kernels = true;      // every action waits for all that the rank has posted, as loading a module does
};

// Ranks that post a boundary's messages together, one batch per lane, and then compute. As on NCCL a batch moves
// nothing until all of its directions are connected, which needs the other side's post; a send ends only when it is
// received; batches of a lane run one after the other.
class Simulation {
 public:
  Simulation(const std::vector<PipelineExchanges>& plan, Transport transport) : plan_(plan), transport_(transport) {
    for (size_t rank = 0; rank < plan.size(); ++rank) ranks_.push_back({});
  }

  // False: some rank waits forever. Messages that meet in another order than they were sent fail the test.
  bool run() {
    for (bool moved = true; moved;) {
      moved = false;
      match();
      for (size_t rank = 0; rank < plan_.size(); ++rank)
        while (advance(rank)) moved = true;
    }
    for (size_t rank = 0; rank < plan_.size(); ++rank)
      if (ranks_[rank].boundary < plan_[rank].size() || !idle(rank)) return false;
    return true;
  }

 private:
  struct Batch {
    std::vector<PipelineTransfer> open;  // not yet met
    bool connected = false;
  };
  struct Rank {
    size_t boundary = 0;  // the next to post
    std::array<std::deque<Batch>, 2> lanes;
  };
  using Pair = std::tuple<size_t, int, int>;  // lane, from, to

  size_t lane_of(const PipelineTransfer& t) const { return transport_.lanes && !t.forward ? 1 : 0; }
  static Pair pair_of(size_t lane, int rank, const PipelineTransfer& t) {
    return t.send ? Pair{lane, rank, t.peer} : Pair{lane, t.peer, rank};
  }

  bool idle(size_t rank) const {
    return std::ranges::all_of(ranks_[rank].lanes, [](const auto& lane) { return lane.empty(); });
  }

  // One move of a rank's host: to connect what it has posted, or to compute and post the next boundary.
  bool advance(size_t rank) {
    Rank& self = ranks_[rank];
    for (size_t lane = 0; lane < 2; ++lane)
      for (Batch& batch : self.lanes[lane])
        if (!batch.connected) {
          batch.connected = true;
          for (const PipelineTransfer& t : batch.open) {
            const Pair pair = pair_of(lane, static_cast<int>(rank), t);
            asked_.insert({pair, rank});
            // Both sides have to ask. (Each sees the other's question at its next move.)
            if (transport_.connects_in_post && !asked_.contains({pair, static_cast<size_t>(t.peer)}))
              batch.connected = false;
          }
          return batch.connected;  // otherwise the host stands still
        }
    if (self.boundary >= plan_[rank].size()) return false;
    if (transport_.loads_kernels && !idle(rank)) return false;
    std::array<Batch, 2> batches;
    for (const PipelineTransfer& t : plan_[rank][self.boundary]) batches[lane_of(t)].open.push_back(t);
    for (size_t lane = 0; lane < 2; ++lane)
      if (!batches[lane].open.empty()) self.lanes[lane].push_back(std::move(batches[lane]));
    ++self.boundary;
    return true;
  }

  // Moves the messages of the front batches, which are the ones that run.
  void match() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t lane = 0; lane < 2; ++lane)
        for (size_t from = 0; from < ranks_.size(); ++from)
          for (size_t to = 0; to < ranks_.size(); ++to) moved |= match(lane, from, to);
    }
  }

  bool match(size_t lane, size_t from, size_t to) {
    std::deque<Batch>&sends = ranks_[from].lanes[lane], &receives = ranks_[to].lanes[lane];
    if (from == to || sends.empty() || receives.empty() || !sends.front().connected || !receives.front().connected)
      return false;
    const auto first = [](Batch& batch, bool send, size_t peer) {
      return std::ranges::find_if(batch.open,
                                  [&](const auto& t) { return t.send == send && static_cast<size_t>(t.peer) == peer; });
    };
    const auto sent = first(sends.front(), true, to), received = first(receives.front(), false, from);
    if (sent == sends.front().open.end() || received == receives.front().open.end()) return false;
    EXPECT_EQ(sent->forward, received->forward);
    EXPECT_EQ(sent->microbatch, received->microbatch);
    sends.front().open.erase(sent);
    receives.front().open.erase(received);
    if (sends.front().open.empty()) sends.pop_front();
    if (receives.front().open.empty()) receives.pop_front();
    return true;
  }

  const std::vector<PipelineExchanges>& plan_;
  const Transport transport_;
  std::vector<Rank> ranks_;
  std::set<std::pair<Pair, size_t>> asked_;
};

TEST(PipelineTransfers, NobodyWaitsForever) {
  for (const PipelineShape& shape : shapes()) {
    if (shape.pp == 1) continue;  // nobody to wait for
    const auto plan = pipeline_transfers(shape);
    for (const bool lanes : {false, true})
      for (const bool loads : {false, true})
        EXPECT_TRUE(Simulation(plan, {.lanes = lanes, .connects_in_post = false, .loads_kernels = loads}).run())
            << text(shape) << (lanes ? " lanes" : "") << (loads ? " loading kernels" : "");
  }
}

// Why connections are opened before the first message: this is how NCCL hangs without it.
TEST(PipelineTransfers, ConnectionsMadeInsideAPostAndLoadedKernelsDeadlock) {
  const auto plan = pipeline_transfers({.kind = ScheduleKind::kOneFOneB, .pp = 2, .microbatches = 4});
  EXPECT_FALSE(Simulation(plan, {.connects_in_post = true, .loads_kernels = true}).run());
  EXPECT_TRUE(Simulation(plan, {.connects_in_post = true, .loads_kernels = false}).run());
  EXPECT_TRUE(Simulation(plan, {.connects_in_post = false, .loads_kernels = true}).run());
}

TEST(PipelineTransfers, ConnectionsAreListedByBothSides) {
  for (const PipelineShape& shape : shapes()) {
    const auto plan = pipeline_transfers(shape);
    for (const bool forward : {true, false}) {
      std::set<std::pair<int, int>> sent, received;
      for (int rank = 0; rank < shape.pp; ++rank) {
        const PipelineConnections peers = pipeline_connections(plan[static_cast<size_t>(rank)], forward);
        for (const int peer : peers.send_to) sent.insert({rank, peer});
        for (const int peer : peers.receive_from) received.insert({peer, rank});
      }
      EXPECT_EQ(sent, received) << text(shape);
    }
  }
  const auto ring = pipeline_transfers({.kind = ScheduleKind::kInterleaved, .pp = 3, .chunks = 2, .microbatches = 6});
  EXPECT_EQ(pipeline_connections(ring[0], true), (PipelineConnections{{1}, {2}}));
  EXPECT_EQ(pipeline_connections(ring[0], false), (PipelineConnections{{2}, {1}}));
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
