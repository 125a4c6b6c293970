#include "megalith/layout/rng_seeds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"

namespace megalith::layout {
namespace {

using ::testing::HasSubstr;

RankGrid tp2_pp2_of_8() {
  GridShape s;
  s.world_size = 8;
  s.tp = 2;
  s.pp = 2;
  return RankGrid(s);
}

TEST(RngSeeds, AdapterUsesOneBaseSeedOnAllRanks) {
  const RankGrid grid = tp2_pp2_of_8();
  for (int rank = 0; rank < 8; ++rank) {
    const RngSeeds seeds = adapter_seeds(42, grid, rank);
    EXPECT_EQ(seeds.cpu, 42);
    EXPECT_EQ(seeds.default_stream, 42);
    EXPECT_EQ(seeds.model_parallel, 42 + 2718 + rank % 2);
  }
}

TEST(RngSeeds, LauncherAddsPipelineAndDataParallelRank) {
  const RankGrid grid = tp2_pp2_of_8();
  EXPECT_EQ(launcher_seeds(1234, false, grid, 6).default_stream, 1234 + 100);
  EXPECT_EQ(launcher_seeds(1234, true, grid, 6).default_stream, 1234 + 100 + 10);
}

TEST(RngSeeds, SeedMustBePositive) {
  const RankGrid grid = tp2_pp2_of_8();
  for (std::optional<int64_t> bad : std::initializer_list<std::optional<int64_t>>{std::nullopt, 0, -7}) {
    try {
      adapter_seeds(bad, grid, 0);
      FAIL() << "not refused";
    } catch (const ConfigError& e) {
      EXPECT_THAT(e.what(), HasSubstr("positive integer"));
    }
  }
}

TEST(RngSeeds, SharedSeedNamesBothStreams) {
  try {
    seeds_for_base(5, 6, 17, 0);
    FAIL() << "not refused";
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), HasSubstr("model-parallel and the expert-parallel"));
    EXPECT_THAT(e.what(), HasSubstr("2729"));
  }
}

}  // namespace
}  // namespace megalith::layout
