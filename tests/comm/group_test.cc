// The collectives against their definition, over threads (2, 4, 8 and 16 ranks) and over Gloo.
#include "megalith/comm/group.h"

#include <gtest/gtest.h>

#include <numeric>

#include "megalith/base/error.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"

namespace megalith::comm {
namespace {

using testing::Rank;

// Rank r's data: different on each rank, exact in every dtype that is tested.
at::Tensor data_of(int rank, int64_t rows, at::ScalarType type = at::kFloat) {
  return (at::arange(rows * 2, at::kFloat).reshape({rows, 2}).remainder(7) + rank + 1).to(type);
}

at::Tensor sum_of_all(int size, int64_t rows, at::ScalarType type = at::kFloat) {
  at::Tensor sum = data_of(0, rows, type);
  for (int r = 1; r < size; ++r) sum = sum + data_of(r, rows, type);
  return sum;
}

struct Transport {
  const char* name;
  int size;
  bool gloo;
};

class GroupOps : public ::testing::TestWithParam<Transport> {
 protected:
  void run(const std::function<void(const Rank&)>& body) const {
    const Transport& transport = GetParam();
    transport.gloo ? testing::run_gloo_ranks(transport.size, body) : testing::run_ranks(transport.size, body);
  }
};

void expect_equal(const at::Tensor& actual, const at::Tensor& expected, const char* what, int rank) {
  EXPECT_TRUE(at::equal(actual, expected)) << what << " on rank " << rank << ":\n"
                                           << actual << "\nexpected\n"
                                           << expected;
}

TEST_P(GroupOps, AllReduceOfEveryDtype) {
  run([](const Rank& r) {
    const Group group = r.world.world();
    for (auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt, at::kLong, at::kByte}) {
      at::Tensor tensor = data_of(r.rank, 3, type);
      group.all_reduce(tensor);
      expect_equal(tensor, sum_of_all(r.size, 3, type), c10::toString(type), r.rank);
    }
  });
}

TEST_P(GroupOps, AllReduceMaxMinAvg) {
  run([](const Rank& r) {
    const Group group = r.world.world();
    at::Tensor max = data_of(r.rank, 3), min = max.clone(), avg = max.clone();
    group.all_reduce(max, ReduceOp::kMax);
    group.all_reduce(min, ReduceOp::kMin);
    group.all_reduce(avg, ReduceOp::kAvg);
    expect_equal(max, data_of(r.size - 1, 3), "max", r.rank);
    expect_equal(min, data_of(0, 3), "min", r.rank);
    EXPECT_TRUE(at::allclose(avg, sum_of_all(r.size, 3) / r.size)) << "avg on rank " << r.rank;
  });
}

TEST_P(GroupOps, AllGatherAndReduceScatterAreCounterparts) {
  run([](const Rank& r) {
    const Group group = r.world.world();
    std::vector<at::Tensor> parts;
    for (int i = 0; i < r.size; ++i) parts.push_back(data_of(i, 3));
    at::Tensor all = at::empty({3 * r.size, 2});
    group.all_gather(all, data_of(r.rank, 3));
    expect_equal(all, at::cat(parts), "all_gather", r.rank);

    at::Tensor own = at::empty({3, 2});
    group.reduce_scatter(own, all * (r.rank + 1));
    const int factor = r.size * (r.size + 1) / 2;
    expect_equal(own, data_of(r.rank, 3) * factor, "reduce_scatter", r.rank);
  });
}

TEST_P(GroupOps, DtypesThatOnlyMove) {
  run([](const Rank& r) {
    const Group group = r.world.world();
    for (auto type : {at::kShort, at::kFloat8_e4m3fn, at::kBool}) {
      const at::Tensor own = data_of(r.rank, 2).to(type);
      at::Tensor all = at::empty({2 * r.size, 2}, type);
      group.all_gather(all, own);
      at::Tensor root = own.clone();
      group.broadcast(root, r.size - 1);
      for (int i = 0; i < r.size; ++i)
        expect_equal(all.narrow(0, 2 * i, 2).to(at::kFloat), data_of(i, 2).to(type).to(at::kFloat), "gathered", r.rank);
      expect_equal(root.to(at::kFloat), data_of(r.size - 1, 2).to(type).to(at::kFloat), "broadcast", r.rank);
    }
  });
}

TEST_P(GroupOps, AllToAllWithUnevenSplits) {
  run([](const Rank& r) {
    const Group group = r.world.world();
    // Rank i sends (i + j) % 3 rows, all holding 100*i + j, to rank j: some send nothing at all.
    const auto rows = [](int from, int to) { return int64_t{(from + to) % 3}; };
    std::vector<int64_t> input_splits, output_splits;
    std::vector<at::Tensor> inputs{at::empty({0, 2})}, expected{at::empty({0, 2})};
    for (int other = 0; other < r.size; ++other) {
      input_splits.push_back(rows(r.rank, other));
      output_splits.push_back(rows(other, r.rank));
      inputs.push_back(at::full({rows(r.rank, other), 2}, 100 * r.rank + other, at::kFloat));
      expected.push_back(at::full({rows(other, r.rank), 2}, 100 * other + r.rank, at::kFloat));
    }
    at::Tensor output = at::empty({std::accumulate(output_splits.begin(), output_splits.end(), int64_t{0}), 2});
    group.all_to_all(output, at::cat(inputs), output_splits, input_splits);
    expect_equal(output, at::cat(expected), "all_to_all", r.rank);
  });
}

TEST_P(GroupOps, AllToAllWithEqualSplits) {
  run([](const Rank& r) {
    at::Tensor output = at::empty({r.size}, at::kLong);
    r.world.world().all_to_all(output, at::arange(r.size) + 100 * r.rank);
    expect_equal(output, at::arange(r.size) * 100 + r.rank, "all_to_all", r.rank);
  });
}

TEST_P(GroupOps, BroadcastFromEveryRoot) {
  run([](const Rank& r) {
    for (int root = 0; root < r.size; ++root) {
      at::Tensor tensor = data_of(r.rank, 2);
      r.world.world().broadcast(tensor, root);
      expect_equal(tensor, data_of(root, 2), "broadcast", r.rank);
    }
  });
}

TEST_P(GroupOps, SendAndRecvKeepTheirOrder) {
  run([](const Rank& r) {
    const Group group = r.world.world();
    if (r.rank == 0) {
      for (int i = 0; i < 5; ++i) group.send(at::full({4}, i, at::kFloat), 1);
    } else if (r.rank == 1) {
      for (int i = 0; i < 5; ++i) {
        at::Tensor tensor = at::empty({4});
        group.recv(tensor, 0);
        expect_equal(tensor, at::full({4}, i, at::kFloat), "recv", r.rank);
      }
    }
  });
}

TEST_P(GroupOps, BatchedRingDoesNotDeadlockWhateverTheOrder) {
  run([](const Rank& r) {
    const int next = (r.rank + 1) % r.size, previous = (r.rank + r.size - 1) % r.size;
    at::Tensor from_previous = at::empty({3}), from_next = at::empty({3});
    const at::Tensor own = at::full({3}, r.rank, at::kFloat), other = own + 1000;
    // Everybody sends first, to both sides; with two ranks both neighbours are the same one.
    r.world.world().batch({{OpKind::kSend, own, next},
                           {OpKind::kSend, other, previous},
                           {OpKind::kRecv, from_previous, previous},
                           {OpKind::kRecv, from_next, next}});
    expect_equal(from_previous, at::full({3}, previous, at::kFloat), "from previous", r.rank);
    expect_equal(from_next, at::full({3}, next + 1000, at::kFloat), "from next", r.rank);
  });
}

TEST_P(GroupOps, AsyncOperationsOverlapAndMayBeWaitedForInAnyOrder) {
  run([](const Rank& r) {
    const Group group = r.world.world();
    at::Tensor first = data_of(r.rank, 3), second = first + 10;
    Work first_work = group.all_reduce_async(first, ReduceOp::kSum, "first");
    Work second_work = group.all_reduce_async(second, ReduceOp::kMax, "second");
    second_work.wait();
    first_work.wait();
    first_work.wait();  // a second time is free
    expect_equal(first, sum_of_all(r.size, 3), "first", r.rank);
    expect_equal(second, data_of(r.size - 1, 3) + 10, "second", r.rank);
    EXPECT_TRUE(first_work.done());
  });
}

TEST_P(GroupOps, BytesOfAnyLength) {
  run([](const Rank& r) {
    const Group group = r.world.world();
    const auto all =
        group.all_gather_bytes(std::string(static_cast<size_t>(3 * r.rank), static_cast<char>('a' + r.rank)));
    ASSERT_EQ(static_cast<int>(all.size()), r.size);
    for (int i = 0; i < r.size; ++i)
      EXPECT_EQ(all[static_cast<size_t>(i)], std::string(static_cast<size_t>(3 * i), static_cast<char>('a' + i)));
    EXPECT_EQ(group.broadcast_bytes(r.rank == 1 ? std::string("x\0y", 3) : "", 1), std::string("x\0y", 3));
    EXPECT_EQ(group.broadcast_bytes("", 0), "");
  });
}

TEST_P(GroupOps, GroupsConnectOnlyWhenUsedAndOnlyWhereARankTakesPart) {
  run([](const Rank& r) {
    const std::vector<int> pair{r.rank / 2 * 2, r.rank / 2 * 2 + 1};
    const Group used = r.world.group("pair", pair);
    r.world.group("unused", pair);
    EXPECT_EQ(r.world.connected_groups(), 0);
    at::Tensor tensor = at::ones({1});
    used.all_reduce(tensor);
    EXPECT_EQ(r.world.connected_groups(), 1);
    EXPECT_EQ(tensor.item<float>(), 2);
    EXPECT_EQ(used.rank(), r.rank % 2);
  });
}

TEST_P(GroupOps, BytesForTheRootAlone) {
  run([](const Rank& r) {
    const Group group = r.world.world();
    const auto parts = group.gather_bytes(std::string(static_cast<size_t>(2 * r.rank), 'x'), 1);
    if (r.rank != 1) {
      EXPECT_TRUE(parts.empty());
      return;
    }
    ASSERT_EQ(static_cast<int>(parts.size()), r.size);
    for (int i = 0; i < r.size; ++i) EXPECT_EQ(parts[static_cast<size_t>(i)].size(), static_cast<size_t>(2 * i));
  });
}

TEST_P(GroupOps, GroupsOfOneLaneShareTheirConnections) {
  run([](const Rank& r) {
    std::vector<int> all(static_cast<size_t>(r.size));
    std::iota(all.begin(), all.end(), 0);
    const Group norm = r.world.group("norm", all, "between steps"), load = r.world.group("load", all, "between steps");
    const Group own = r.world.group("own", all);
    for (int i = 1; i <= 3; ++i) {
      at::Tensor a = at::full({1}, i), b = at::full({1}, 10 * i);
      norm.all_reduce(a);
      load.all_reduce(b);
      EXPECT_EQ(a.item<float>(), static_cast<float>(i * r.size));
      EXPECT_EQ(b.item<float>(), static_cast<float>(10 * i * r.size));
    }
    EXPECT_EQ(r.world.connected_groups(), 1);
    own.barrier();
    EXPECT_EQ(r.world.connected_groups(), 2);
  });
}

// A ring, as a pipeline with virtual stages has it; opening again costs nothing, and messages arrive as without.
TEST_P(GroupOps, TransfersOverOpenedConnections) {
  run([](const Rank& r) {
    const Group group = r.world.world();
    const int next = (r.rank + 1) % r.size, before = (r.rank + r.size - 1) % r.size;
    for (int i = 0; i < 2; ++i) group.open_transfers({next}, {before});
    at::Tensor in = at::empty({3});
    group.batch({{OpKind::kSend, at::full({3}, static_cast<float>(r.rank)), next}, {OpKind::kRecv, in, before}},
                "ring");
    EXPECT_EQ(in[2].item<float>(), static_cast<float>(before));
  });
}

// Two groups first used in opposite order by their two ranks: only works when connecting does not block.
TEST_P(GroupOps, FirstUseInOppositeOrderDoesNotDeadlock) {
  run([](const Rank& r) {
    if (r.rank > 1) return;
    const Group a = r.world.group("a", {0, 1}), b = r.world.group("b", {0, 1});
    at::Tensor to = at::ones({2}), from = at::empty({2});
    if (r.rank == 0) {
      Work sent = a.send_async(to, 1);
      b.recv(from, 1);
      sent.wait();
    } else {
      Work sent = b.send_async(to, 0);
      a.recv(from, 0);
      sent.wait();
    }
    expect_equal(from, at::ones({2}), "crossed", r.rank);
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, GroupOps,
                         ::testing::Values(Transport{"threads2", 2, false}, Transport{"threads4", 4, false},
                                           Transport{"threads8", 8, false}, Transport{"threads16", 16, false},
                                           Transport{"gloo2", 2, true}, Transport{"gloo4", 4, true}),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(Group, OfOneRankIsFree) {
  testing::run_ranks(1, [](const Rank& r) {
    const Group group = r.world.world();
    at::Tensor tensor = at::ones({2}), out = at::empty({2});
    group.all_reduce(tensor, ReduceOp::kAvg);
    group.all_gather(out, tensor);
    group.reduce_scatter(out, tensor);
    group.all_to_all(out, tensor);
    group.broadcast(tensor, 0);
    group.barrier();
    EXPECT_EQ(group.all_gather_bytes("x"), std::vector<std::string>{"x"});
    EXPECT_EQ(group.broadcast_bytes("y", 0), "y");
    EXPECT_TRUE(at::equal(out, at::ones({2})));
    EXPECT_EQ(r.world.connected_groups(), 0);
  });
}

TEST(Group, ADroppedHandleDoesNotLookLikeAHang) {
  testing::run_ranks(2, [](const Rank& r) {
    at::Tensor tensor = at::ones({2});
    { const Work dropped = r.world.world().all_reduce_async(tensor, ReduceOp::kSum, "dropped"); }
    r.world.world().barrier();
    EXPECT_TRUE(at::equal(tensor, at::full({2}, 2.0f)));
    // The barrier, and the other one if it was found done when its handle went; otherwise a later look finds it.
    EXPECT_NE(r.world.recent_operations().back().find("barrier"), std::string::npos);
  });
}

TEST(Group, WrongArgumentsAreRefusedBeforeAnythingIsSent) {
  testing::run_ranks(2, [](const Rank& r) {
    const Group group = r.world.world();
    EXPECT_THROW(group.all_reduce(at::ones({4, 4}).t()), InternalError);                     // not contiguous
    EXPECT_THROW(group.all_gather(at::ones({3}), at::ones({2})), InternalError);             // not two blocks
    EXPECT_THROW(group.all_reduce(at::ones({2}, at::kInt), ReduceOp::kAvg), InternalError);  // no average of integers
    EXPECT_THROW(group.all_to_all(at::ones({3}), at::ones({3})), InternalError);             // three rows, two ranks
    EXPECT_THROW(group.broadcast(at::ones({2}), 2), InternalError);
    EXPECT_THROW(group.send(at::ones({2}), r.rank), InternalError);
    EXPECT_THROW(r.world.group("other", {1 - r.rank}), InternalError);
    EXPECT_THROW(r.world.group("twice", {0, 0, 1}), InternalError);
  });
}

// A tensor that NCCL would refuse is refused by every transport: tests without NCCL find it too.
TEST(Group, ATensorOnAnotherDeviceThanTheRunsIsRefused) {
  WorldOptions options;
  options.backend = "gloo";
  options.device = at::Device(at::kCUDA, 1);
  const auto body = [](const Rank& r) {
    EXPECT_EQ(r.world.world().device(), at::Device(at::kCUDA, 1));
    testing::expect_error<InternalError>(
        [&] { r.world.world().all_reduce(at::ones({2}), ReduceOp::kSum, "gradient norm"); },
        {"all_reduce 'gradient norm'", "group world", "on cpu", "cuda:1"});
    EXPECT_THROW(r.world.world().batch({{OpKind::kSend, at::ones({2}), 1 - r.rank}}), InternalError);
    EXPECT_EQ(r.world.connected_groups(), 0);
  };
  testing::run_gloo_ranks(2, body, options);
  for (const auto& world : World::in_process(1, options))
    EXPECT_THROW(world->world().all_reduce(at::ones({2})), InternalError);  // one rank tells for many
}

TEST(Group, AnOperationThatFailsToStartIsNamedAndLeavesNoRecord) {
  testing::run_gloo_ranks(2, [](const Rank& r) {
    const Group group = r.world.world();
    group.barrier("connect");
    testing::expect_error<CommError>([&] { group.all_reduce(at::ones({2}, at::kShort), ReduceOp::kSum, "odd type"); },
                                     {"all_reduce 'odd type'", "group world", "cannot be reduced"});
    ASSERT_FALSE(r.world.recent_operations().empty());
    EXPECT_NE(r.world.recent_operations().back().find("odd type"), std::string::npos);  // ended, not running
  });
}

// Reductions add in rank order: bit-identical whatever the timing, and on all ranks.
TEST(Group, InProcessReductionsAreReproducible) {
  at::Tensor reference;
  for (int attempt = 0; attempt < 3; ++attempt) {
    std::vector<at::Tensor> results(8);
    testing::run_ranks(8, [&](const Rank& r) {
      at::Tensor tensor = (at::arange(100, at::kFloat) + 0.1f).pow(1.3) * (r.rank + 0.7);
      r.world.world().all_reduce(tensor);
      results[static_cast<size_t>(r.rank)] = tensor;
    });
    if (!reference.defined()) reference = results[0];
    for (const at::Tensor& result : results) EXPECT_TRUE(at::equal(result, reference));
  }
}

}  // namespace
}  // namespace megalith::comm
