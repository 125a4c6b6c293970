// Overlap on real processes: reductions of gradients are over while backward still computes.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/subprocess.h"

namespace megalith::testing {
namespace {

TEST(OverlapOfProcesses, ReducesGradientsDuringBackward) {
  const auto result = run_process({DDP_PROGRAM, "--nproc", "2", "--rounds", "4"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto line = nlohmann::json::parse(result.out);
  EXPECT_GT(line.at("buckets"), 4);
  // A bucket is started by a gradient, so within backward; here at least one was also done before its end.
  EXPECT_GE(line.at("reduced_in_backward"), 1);
}

}  // namespace
}  // namespace megalith::testing
