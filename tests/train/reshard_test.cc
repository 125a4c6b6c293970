// Random pairs of layouts.
#include <gtest/gtest.h>

#include "tests/train/reshard_case.h"

namespace megalith::testing {
namespace {

constexpr uint64_t kPairs = 10;

class Reshard : public ::testing::TestWithParam<uint64_t> {};

TEST_P(Reshard, TenRandomPairsOfLayouts) {
  for (uint64_t seed = 0; seed < kPairs; ++seed) try_pair_of_layouts(GetParam() * kPairs + seed);
}

INSTANTIATE_TEST_SUITE_P(Pairs, Reshard, ::testing::Range<uint64_t>(0, RESHARD_TESTS));

}  // namespace
}  // namespace megalith::testing
