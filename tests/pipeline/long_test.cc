// A thousand random pipelines; the suite runs the first sixty.
#include <gtest/gtest.h>

#include "tests/pipeline/lattice.h"

namespace megalith::testing {
namespace {

class RandomPipelines : public ::testing::TestWithParam<uint64_t> {};
TEST_P(RandomPipelines, RunAndAreRight) { expect_random_parity(GetParam() * 50, 50); }
INSTANTIATE_TEST_SUITE_P(Seeds, RandomPipelines, ::testing::Range<uint64_t>(0, 20));

}  // namespace
}  // namespace megalith::testing
