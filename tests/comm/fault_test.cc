// The messages that a rank gets when the others do not do their part. In-process and over Gloo.
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"

namespace megalith::comm {
namespace {

using std::chrono::milliseconds;
using testing::expect_contains;
using testing::Rank;

std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

TEST(Fault, ARankThatNeverEntersIsNamedWithItsLastWords) {
  testing::run_ranks(
      4,
      [](const Rank& r) {
        const Group group = r.world.world();
        group.barrier("warm-up");
        if (r.rank == 2) {
          std::this_thread::sleep_for(milliseconds(800));
          return;
        }
        const std::string text = error_of([&] { group.all_reduce(at::ones({4}), ReduceOp::kSum, "grad_norm"); });
        // The first to reach the limit tells all; the others repeat what it said.
        expect_contains(text, "all_reduce 'grad_norm' #2");
        expect_contains(text, "not arrived: 2");
        expect_contains(text, "rank 2: finished barrier 'warm-up' #1 of world");
        expect_contains(text, "--ddp_timeout");
      },
      milliseconds(300));
}

TEST(Fault, AReceiveWithoutASendNamesThePeer) {
  testing::run_ranks(
      2,
      [](const Rank& r) {
        if (r.rank == 1) return;
        const std::string text = error_of([&] { r.world.world().recv(at::ones({4}), 1, "activation"); });
        expect_contains(text, "recv 'activation' #1");
        expect_contains(text, "not arrived: 1");
      },
      milliseconds(200));
}

TEST(Fault, MismatchedOperationsShowBothSides) {
  testing::run_ranks(2, [](const Rank& r) {
    const Group group = r.world.world();
    const std::string text = error_of([&] {
      if (r.rank == 0)
        group.all_reduce(at::ones({4}), ReduceOp::kSum, "loss");
      else
        group.broadcast(at::ones({4}), 0, "weights");
    });
    expect_contains(text, "all_reduce 'loss' #1, float [4], sum");
    expect_contains(text, "broadcast 'weights' #1, float [4]");
  });
}

TEST(Fault, MismatchedShapesShowBothSides) {
  testing::run_ranks(2, [](const Rank& r) {
    const std::string text = error_of([&] { r.world.world().all_reduce(at::ones({4 + r.rank})); });
    expect_contains(text, "float [4]");
    expect_contains(text, "float [5]");
  });
}

TEST(Fault, AFailedRankReleasesTheOthersAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  const auto worlds = World::in_process(4);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank)
    threads.emplace_back([&, rank] {
      World& world = *worlds[static_cast<size_t>(rank)];
      if (rank == 3) return world.report_failure("rank 3: disk full");
      expect_contains(error_of([&] { world.world().barrier(); }), "disk full");
      expect_contains(error_of([&] { world.world().barrier(); }), "the run is over");
    });
  for (auto& thread : threads) thread.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(GlooFault, ARankThatNeverEntersIsNamedWithItsLastWords) {
  WorldOptions options;
  options.timeout = milliseconds(2500);
  testing::run_gloo_ranks(
      3,
      [](const Rank& r) {
        const Group group = r.world.world();
        group.barrier("warm-up");
        if (r.rank == 1) {
          std::this_thread::sleep_for(milliseconds(4500));
          return;
        }
        const std::string text = error_of([&] { group.all_reduce(at::ones({4}), ReduceOp::kSum, "grad_norm"); });
        expect_contains(text, "all_reduce 'grad_norm' #2");
        expect_contains(text, "not arrived: 1");
        expect_contains(text, "rank 1: finished barrier 'warm-up' #1 of world");
      },
      options);
}

// The group was never used before: nobody is connected yet, and the limit must hold all the same.
TEST(GlooFault, ARankThatNeverConnectsIsNamed) {
  WorldOptions options;
  options.timeout = milliseconds(2000);
  testing::run_gloo_ranks(
      2,
      [](const Rank& r) {
        if (r.rank == 1) {
          std::this_thread::sleep_for(milliseconds(3500));
          return;
        }
        const auto start = std::chrono::steady_clock::now();
        const std::string text = error_of([&] { r.world.world().barrier("first"); });
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(4));
        expect_contains(text, "barrier 'first' #1");
        expect_contains(text, "not arrived: 1");
        expect_contains(text, "no operation yet");
      },
      options);
}

TEST(GlooFault, AReceiveWithoutASendNamesThePeer) {
  WorldOptions options;
  options.timeout = milliseconds(1500);
  testing::run_gloo_ranks(
      2,
      [](const Rank& r) {
        r.world.world().barrier();
        if (r.rank == 1) {
          std::this_thread::sleep_for(milliseconds(2500));
          return;
        }
        const std::string text = error_of([&] { r.world.world().recv(at::ones({4}), 1, "activation"); });
        expect_contains(text, "recv 'activation' #1");
        expect_contains(text, "not arrived: 1");
      },
      options);
}

TEST(GlooFault, DebugModeFindsMismatchesBeforeTheyHang) {
  WorldOptions options;
  options.debug = true;
  testing::run_gloo_ranks(
      2,
      [](const Rank& r) {
        const Group group = r.world.world();
        for (int i = 0; i < 5; ++i) group.all_reduce(at::ones({4}), ReduceOp::kSum, "loss");  // equal: nothing to say
        const std::string text = error_of([&] {
          if (r.rank == 0)
            group.all_reduce(at::ones({8}), ReduceOp::kSum, "loss");
          else
            group.all_gather(at::ones({8}), at::ones({4}), "weights");
        });
        expect_contains(text, "all_reduce 'loss' #6, float [8], sum");
        expect_contains(text, "all_gather 'weights' #6, float [4]");
      },
      options);
}

TEST(GlooFault, DebugModeComparesTransfers) {
  WorldOptions options;
  options.debug = true;
  testing::run_gloo_ranks(
      2,
      [](const Rank& r) {
        const Group group = r.world.world();
        if (r.rank == 0) {
          error_of([&] { group.send(at::ones({4}), 1, "activation"); });
        } else {
          const std::string text = error_of([&] { group.recv(at::ones({3}), 0, "activation"); });
          expect_contains(text, "send 'activation' #1, float [4]");
          expect_contains(text, "recv 'activation' #1, float [3]");
        }
      },
      options);
}

}  // namespace
}  // namespace megalith::comm
