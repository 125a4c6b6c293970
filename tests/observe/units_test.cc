#include "megalith/observe/units.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace megalith::observe {
namespace {

TEST(Units, Grouped) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(grouped(-123), "-123");
}

TEST(Units, Bytes) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(1024.0 * 1024 - 1), "1.0 MiB");
  EXPECT_EQ(bytes_text(80.0 * (1LL << 30)), "80.0 GiB");
  EXPECT_EQ(bytes_text(5000.0 * (1LL << 40)), "5000.0 TiB");
}

TEST(Units, Rates) {
  EXPECT_EQ(rate_text(987.4), "987");
  EXPECT_EQ(rate_text(12345), "12.3k");
  EXPECT_EQ(rate_text(999'960), "1.00M");
}

TEST(Units, Durations) {
  EXPECT_EQ(duration_text(0), "0:00:00");
  EXPECT_EQ(duration_text(7.4), "0:00:07");
  EXPECT_EQ(duration_text(5025), "1:23:45");
  EXPECT_EQ(duration_text(2 * 86400 + 3 * 3600 + 4 * 60 + 5), "2d 03:04:05");
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()})
    EXPECT_EQ(duration_text(bad), "?");
}

}  // namespace
}  // namespace megalith::observe
