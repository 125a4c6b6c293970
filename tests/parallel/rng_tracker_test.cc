// Named random streams: forks continue where the last one stopped, survive exceptions, nesting and serialization, and
// agree or differ between tensor-parallel ranks as their seeds say.
#include "megalith/parallel/rng_tracker.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <thread>

#include "megalith/base/error.h"

namespace megalith::parallel {
namespace {

// Seeds of tp rank `tp_rank` with base seed 42.
layout::RngSeeds seeds(int tp_rank) { return layout::seeds_for_base(42, tp_rank, 0, 0); }

at::Tensor draw(const RngTracker& rng) { return at::rand({8}, rng.generator()); }

TEST(RngTracker, TpRanksAgreeOutsideForksAndDifferInside) {
  RngTracker first, second;
  first.seed(seeds(0));
  second.seed(seeds(1));
  EXPECT_TRUE(at::equal(draw(first), draw(second)));
  {
    const auto fork_first = first.fork(), fork_second = second.fork();
    EXPECT_FALSE(at::equal(draw(first), draw(second)));
  }
  EXPECT_TRUE(at::equal(draw(first), draw(second)));
}

TEST(RngTracker, AForkContinuesWhereTheLastOneStopped) {
  RngTracker once, twice;
  once.seed(seeds(0));
  twice.seed(seeds(0));
  at::Tensor whole, first, second;
  {
    const auto fork = once.fork();
    whole = at::cat({draw(once), draw(once)});
  }
  {
    const auto fork = twice.fork();
    first = draw(twice);
  }
  draw(twice);  // the default stream, in between
  {
    const auto fork = twice.fork();
    second = draw(twice);
  }
  EXPECT_TRUE(at::equal(whole, at::cat({first, second})));
}

TEST(RngTracker, NestedForksLoseNoProgress) {
  RngTracker plain, nested;
  plain.seed(seeds(0));
  nested.seed(seeds(0));
  at::Tensor expected, actual;
  {
    const auto fork = plain.fork();
    expected = at::cat({draw(plain), draw(plain)});
  }
  {
    const auto outer = nested.fork();
    const at::Tensor before = draw(nested);
    {
      const auto inner = nested.fork(kExpertParallelRng);
      draw(nested);
    }
    actual = at::cat({before, draw(nested)});
  }
  EXPECT_TRUE(at::equal(expected, actual));
}

TEST(RngTracker, AForkOfTheActiveStreamContinuesIt) {
  RngTracker plain, nested;
  plain.seed(seeds(0));
  nested.seed(seeds(0));
  at::Tensor expected, actual;
  {
    const auto fork = plain.fork();
    expected = at::cat({draw(plain), draw(plain)});
  }
  {
    const auto outer = nested.fork();
    const at::Tensor before = draw(nested);
    const auto inner = nested.fork();
    actual = at::cat({before, draw(nested)});
  }
  EXPECT_TRUE(at::equal(expected, actual));
}

TEST(RngTracker, AnExceptionRestoresTheOuterStream) {
  RngTracker rng, reference;
  rng.seed(seeds(0));
  reference.seed(seeds(0));
  try {
    const auto fork = rng.fork();
    draw(rng);
    throw DataError("broken");
  } catch (const DataError&) {
  }
  EXPECT_TRUE(at::equal(draw(rng), draw(reference)));
}

TEST(RngTracker, SeedingThrowsProgressAway) {
  RngTracker rng;
  rng.seed(seeds(3));
  const at::Tensor first = draw(rng);
  draw(rng);
  rng.seed(seeds(3));
  EXPECT_TRUE(at::equal(first, draw(rng)));
}

TEST(RngTracker, AllStatesSurviveAsBytes) {
  RngTracker rng;
  rng.seed(seeds(1));
  draw(rng);
  {
    const auto fork = rng.fork(kExpertParallelRng);
    draw(rng);
  }
  const std::string bytes = rng.save();
  const auto sequence = [](RngTracker& tracker) {
    std::vector<at::Tensor> drawn{draw(tracker), at::rand({4}, tracker.host_generator())};
    for (const auto name : {kDataParallelRng, kModelParallelRng, kExpertParallelRng}) {
      const auto fork = tracker.fork(name);
      drawn.push_back(draw(tracker));
      drawn.push_back(at::randn({5}, tracker.generator()));  // has a cached half of a pair
    }
    return at::cat(drawn);
  };
  const at::Tensor expected = sequence(rng);
  RngTracker other;
  other.restore(bytes);
  EXPECT_TRUE(at::equal(expected, sequence(other)));
}

TEST(RngTracker, BrokenBytesAreRefusedAndChangeNothing) {
  RngTracker rng, reference;
  rng.seed(seeds(0));
  reference.seed(seeds(0));
  const std::string bytes = rng.save();
  EXPECT_THROW(rng.restore("nonsense"), DataError);
  EXPECT_THROW(rng.restore(std::string_view(bytes).substr(0, bytes.size() / 2)), DataError);
  std::string wrong = bytes;
  wrong.resize(40);
  EXPECT_THROW(rng.restore(wrong), DataError);
  EXPECT_TRUE(at::equal(draw(rng), draw(reference)));
  EXPECT_TRUE(rng.is_initialized());
}

TEST(RngTracker, DuplicatesAndUnknownNamesAreErrors) {
  RngTracker rng;
  rng.add("a", 1);
  EXPECT_THROW(rng.add("a", 2), InternalError);
  EXPECT_THROW(rng.add("b", 1), InternalError);
  EXPECT_THROW((void)rng.fork("c"), InternalError);
  rng.reset();
  EXPECT_FALSE(rng.is_initialized());
  rng.add("a", 1);
}

TEST(RngTracker, AddingAStreamLeavesTheGeneratorAlone) {
  RngTracker rng, reference;
  rng.seed(seeds(0));
  reference.seed(seeds(0));
  rng.add("other", 99);
  EXPECT_TRUE(at::equal(draw(rng), draw(reference)));
}

TEST(RngTracker, StatesAreCopies) {
  RngTracker rng;
  rng.seed(seeds(0));
  const auto states = rng.states();
  EXPECT_EQ(states.size(), 3u);
  at::Tensor first;
  {
    const auto fork = rng.fork();
    first = draw(rng);
  }
  rng.set_states(states);
  const auto fork = rng.fork();
  EXPECT_TRUE(at::equal(first, draw(rng)));
}

// The same rules on a GPU, where the generator is the device's default one.
TEST(RngTracker, CudaForksAndBytes) {
  if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no GPU";
  const at::Device device(at::kCUDA, 0);
  const auto draw_cuda = [&](const RngTracker& rng) {
    return at::rand({1000}, rng.generator(), at::TensorOptions().device(device));
  };
  RngTracker rng(device);
  rng.seed(seeds(1));
  const at::Tensor outside = draw_cuda(rng);
  at::Tensor inside, again;
  {
    const auto fork = rng.fork();
    inside = draw_cuda(rng);
  }
  EXPECT_FALSE(at::equal(outside, inside));
  const std::string bytes = rng.save();
  const at::Tensor next = draw_cuda(rng);
  rng.restore(bytes);
  EXPECT_TRUE(at::equal(next, draw_cuda(rng)));
  // ATen's dropout takes no generator: it must follow the fork, too.
  const auto dropped = [&] {
    const auto fork = rng.fork();
    return std::get<0>(at::native_dropout(at::ones({1000}, device), 0.5, true));
  };
  rng.restore(bytes);
  const at::Tensor first = dropped();
  rng.restore(bytes);
  EXPECT_TRUE(at::equal(first, dropped()));
  EXPECT_FALSE(at::equal(first, dropped()));
}

// Sixteen ranks draw at once, from two threads' worth of cores: each gets what it would get alone.
TEST(RngTracker, ResultsDoNotDependOnTheThread) {
  std::vector<at::Tensor> alone(16), together(16);
  const auto run = [](int rank) {
    RngTracker rng;
    rng.seed(seeds(rank));
    const at::Tensor outside = draw(rng);
    const auto fork = rng.fork();
    return at::cat({outside, draw(rng)});
  };
  for (int rank = 0; rank < 16; ++rank) alone[static_cast<size_t>(rank)] = run(rank);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 16; ++rank)
    threads.emplace_back([&, rank] { together[static_cast<size_t>(rank)] = run(rank); });
  for (auto& thread : threads) thread.join();
  for (size_t rank = 0; rank < 16; ++rank) EXPECT_TRUE(at::equal(alone[rank], together[rank])) << "rank " << rank;
}

}  // namespace
}  // namespace megalith::parallel
