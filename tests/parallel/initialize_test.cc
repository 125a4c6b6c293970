#include "megalith/parallel/initialize.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "tests/support/run_ranks.h"

namespace megalith::parallel {
namespace {

using testing::Rank;

config::TrainingArguments args(int tp, int pp, int64_t seed = 42) {
  config::TrainingArguments result;
  result.parallel.tp = tp;
  result.parallel.pp = pp;
  result.seeds.seed = seed;
  return result;
}

TEST(Initialize, MakesGroupsOnceAndSeedsEveryTime) {
  testing::run_ranks(4, [](const Rank& r) {
    Runtime runtime(r.world);
    EXPECT_FALSE(runtime.is_initialized());
    ParallelContext& context = runtime.initialize(args(2, 2));
    EXPECT_TRUE(runtime.is_initialized());
    const at::Tensor first = at::rand({4}, context.rng().generator());
    EXPECT_EQ(&runtime.initialize(args(2, 2)), &context);
    EXPECT_TRUE(at::equal(first, at::rand({4}, context.rng().generator())));
  });
}

TEST(Initialize, OtherSizesAreIgnoredWithAWarning) {
  testing::run_ranks(4, [](const Rank& r) {
    Runtime runtime(r.world);
    runtime.initialize(args(2, 2));
    if (r.rank == 0) {
      ::testing::internal::CaptureStderr();
      EXPECT_EQ(runtime.initialize(args(4, 1)).grid().shape().tp, 2);
      const std::string said = ::testing::internal::GetCapturedStderr();
      EXPECT_NE(said.find("tp=4 pp=1"), std::string::npos) << said;
      EXPECT_NE(said.find("tp=2 pp=2"), std::string::npos) << said;
    }
  });
}

TEST(Initialize, AfterShutdownOtherSizesWork) {
  testing::run_ranks(4, [](const Rank& r) {
    Runtime runtime(r.world);
    runtime.initialize(args(2, 2));
    runtime.shutdown_groups();
    EXPECT_FALSE(runtime.is_initialized());
    EXPECT_THROW(runtime.context(), InternalError);
    ParallelContext& context = runtime.initialize(args(4, 1));
    at::Tensor ones = at::ones({1});
    context.tp().all_reduce(ones);
    EXPECT_EQ(ones.item<float>(), 4);
  });
}

TEST(Initialize, TheSeedMustBePositive) {
  testing::run_ranks(1, [](const Rank& r) {
    for (int64_t seed : {int64_t{0}, int64_t{-1}}) {
      Runtime runtime(r.world);
      try {
        runtime.initialize(args(1, 1, seed));
        FAIL() << "seed " << seed << " was accepted";
      } catch (const ConfigError& error) {
        EXPECT_NE(std::string(error.what()).find("seed"), std::string::npos) << error.what();
      }
    }
  });
}

TEST(Initialize, ImpossibleSizesAreRefused) {
  testing::run_ranks(4, [](const Rank& r) {
    Runtime runtime(r.world);
    EXPECT_THROW(runtime.initialize(args(3, 1)), ConfigError);
    EXPECT_FALSE(runtime.is_initialized());
  });
}

// The process-wide default, in this process: one rank, no launcher.
TEST(Initialize, TheDefaultRuntimeStartsStopsAndStartsAgain) {
  EXPECT_FALSE(is_distribute_initialized());
  ParallelContext& context = initialize_megatron(args(1, 1));
  EXPECT_TRUE(is_distribute_initialized());
  EXPECT_EQ(context.world().size(), 1);
  shutdown_megatron();
  EXPECT_FALSE(is_distribute_initialized());
  initialize_megatron(args(1, 1, 7));
  EXPECT_TRUE(is_distribute_initialized());
  shutdown_megatron();
}

}  // namespace
}  // namespace megalith::parallel
