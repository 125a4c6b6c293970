#include "megalith/parallel/runtime.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/parallel/runtime_settings.h"
#include "tests/support/run_ranks.h"

namespace megalith::parallel {
namespace {

using testing::Rank;

RuntimeSettings sizes(int tp, int pp, int64_t seed = 42) {
  RuntimeSettings settings;
  settings.grid.tp = tp;
  settings.grid.pp = pp;
  settings.seeds.seed = seed;
  return settings;
}

TEST(Runtime, MakesGroupsOnceAndSeedsEveryTime) {
  testing::run_ranks(4, [](const Rank& r) {
    Runtime runtime(r.world);
    EXPECT_FALSE(runtime.is_initialized());
    ParallelContext& context = runtime.initialize(sizes(2, 2));
    EXPECT_TRUE(runtime.is_initialized());
    const at::Tensor first = at::rand({4}, context.rng().generator());
    EXPECT_EQ(&runtime.initialize(sizes(2, 2)), &context);
    EXPECT_TRUE(at::equal(first, at::rand({4}, context.rng().generator())));
  });
}

// at::rand without a generator, as in a program's own collator.
TEST(Runtime, SeedsTheDefaultGeneratorOfTheCpu) {
  testing::run_ranks(1, [](const Rank& r) {
    Runtime runtime(r.world);
    runtime.initialize(sizes(1, 1));
    const at::Tensor first = at::rand({4});
    EXPECT_FALSE(at::equal(first, at::rand({4})));
    runtime.initialize(sizes(1, 1));
    EXPECT_TRUE(at::equal(first, at::rand({4})));
  });
}

TEST(Runtime, OtherSizesAreIgnoredWithAWarning) {
  testing::run_ranks(4, [](const Rank& r) {
    Runtime runtime(r.world);
    runtime.initialize(sizes(2, 2));
    if (r.rank == 0) {
      ::testing::internal::CaptureStderr();
      EXPECT_EQ(runtime.initialize(sizes(4, 1)).grid().shape().tp, 2);
      const std::string said = ::testing::internal::GetCapturedStderr();
      EXPECT_NE(said.find("tp=4 pp=1"), std::string::npos) << said;
      EXPECT_NE(said.find("tp=2 pp=2"), std::string::npos) << said;
    }
  });
}

TEST(Runtime, AfterShutdownOtherSizesWork) {
  testing::run_ranks(4, [](const Rank& r) {
    Runtime runtime(r.world);
    runtime.initialize(sizes(2, 2));
    runtime.shutdown_groups();
    EXPECT_FALSE(runtime.is_initialized());
    EXPECT_THROW(runtime.context(), InternalError);
    ParallelContext& context = runtime.initialize(sizes(4, 1));
    at::Tensor ones = at::ones({1});
    context.tp().all_reduce(ones);
    EXPECT_EQ(ones.item<float>(), 4);
  });
}

TEST(Runtime, TheSeedMustBePositive) {
  testing::run_ranks(1, [](const Rank& r) {
    for (int64_t seed : {int64_t{0}, int64_t{-1}}) {
      Runtime runtime(r.world);
      try {
        runtime.initialize(sizes(1, 1, seed));
        FAIL() << "seed " << seed << " was accepted";
      } catch (const ConfigError& error) {
        EXPECT_NE(std::string(error.what()).find("seed"), std::string::npos) << error.what();
      }
    }
  });
}

TEST(Runtime, ImpossibleSizesAreRefused) {
  testing::run_ranks(4, [](const Rank& r) {
    Runtime runtime(r.world);
    EXPECT_THROW(runtime.initialize(sizes(3, 1)), ConfigError);
    EXPECT_FALSE(runtime.is_initialized());
  });
}

// The process itself, without a launcher: one rank.
TEST(Runtime, StartsStopsAndStartsAgain) {
  Runtime runtime;
  EXPECT_EQ(runtime.initialize(sizes(1, 1)).world().size(), 1);
  runtime.shutdown();
  EXPECT_FALSE(runtime.is_initialized());
  runtime.initialize(sizes(1, 1, 7));
  EXPECT_TRUE(runtime.is_initialized());
  runtime.shutdown();
}

TEST(Runtime, SeedsFollowTheRule) {
  testing::run_ranks(4, [](const Rank& r) {
    Runtime runtime(r.world);
    RuntimeSettings settings = sizes(1, 2, 1000);
    const int64_t stage = r.rank / 2, replica = r.rank % 2;
    const std::vector<std::pair<SeedRule, int64_t>> rules{
        {SeedRule::kAdapter, 1000},
        {SeedRule::kMegatron, 1000 + 100 * stage},
        {SeedRule::kMegatronPerReplica, 1000 + 100 * stage + 10 * replica}};
    for (const auto& [rule, seed] : rules) {
      settings.seeds.rule = rule;
      ParallelContext& context = runtime.initialize(settings);
      EXPECT_EQ(rng_seeds(settings.seeds, context.grid(), r.rank).cpu, seed);
      at::Generator expected = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed));
      EXPECT_TRUE(at::equal(at::rand({4}, context.rng().generator()), at::rand({4}, expected)));
    }
  });
}

// Kernels that split the sum of a product add its parts in fp32.
TEST(LibrarySwitches, ProductsAreRoundedOnce) {
  at::globalContext().setAllowBF16ReductionCuBLAS(true);
  at::globalContext().setAllowFP16ReductionCuBLAS(true);
  apply_library_switches({});
  constexpr auto kOnce = at::CuBLASReductionOption::DisallowReducedPrecisionAllowSplitK;
  EXPECT_EQ(at::globalContext().allowBF16ReductionCuBLAS(), kOnce);
  EXPECT_EQ(at::globalContext().allowFP16ReductionCuBLAS(), kOnce);
}

}  // namespace
}  // namespace megalith::parallel
