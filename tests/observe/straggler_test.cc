#include "megalith/observe/straggler.h"

#include <gtest/gtest.h>

#include "tests/support/expect.h"

namespace megalith::observe {
namespace {

using testing::expect_contains;

TEST(StragglerReport, NamesTheRankThatKeepsOthersWaiting) {
  const auto report = straggler_report({{0, 0.2, 0.31}, {1, 0.22, 0.29}, {2, 0.5, 0.01}, {3, 0.21, 0.3}}, 1);
  EXPECT_TRUE(report.is_straggler);
  EXPECT_EQ(report.slowest.rank, 2);
  EXPECT_DOUBLE_EQ(report.median_compute, 0.21);
  EXPECT_DOUBLE_EQ(report.longest_wait, 0.31);
  EXPECT_EQ(report.text,
            "slowest: rank 2 (0.500 s compute, 0.010 s wait); fastest: rank 0 (0.200 s compute, 0.310 s wait)");
}

TEST(StragglerReport, NamesAsManyAsAsked) {
  const auto report = straggler_report({{0, 0.2, 0}, {1, 0.22, 0}, {2, 0.24, 0}}, 2);
  EXPECT_FALSE(report.is_straggler);
  expect_contains(report.text, "slowest: rank 2 (0.240 s compute, 0.000 s wait), rank 1");
  expect_contains(report.text, "fastest: rank 0 (0.200 s compute, 0.000 s wait), rank 1");
  EXPECT_EQ(straggler_report({{0, 0.2, 0}}, 5).text.find("rank 1"), std::string::npos);
}

TEST(StragglerReport, ASingleRankIsNotAStraggler) { EXPECT_FALSE(straggler_report({{0, 5, 0}}, 1).is_straggler); }

}  // namespace
}  // namespace megalith::observe
