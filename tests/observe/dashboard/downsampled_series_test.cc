#include "megalith/observe/dashboard/downsampled_series.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

namespace megalith::observe {
namespace {

nlohmann::json json_of(const DownsampledSeries& series) {
  std::string text;
  series.append_json(text);
  return nlohmann::json::parse(text);
}

TEST(DownsampledSeries, FewPointsStayAsTheyAre) {
  DownsampledSeries series(8);
  for (int i = 1; i <= 8; ++i) series.add(i, i * 0.5);
  EXPECT_TRUE(series.exact());
  EXPECT_EQ(json_of(series), nlohmann::json::parse(R"({"points":8,"not_finite":0,"x":[1,2,3,4,5,6,7,8],
    "mean":[0.5,1,1.5,2,2.5,3,3.5,4],"last":[8,4]})"));
}

TEST(DownsampledSeries, PeaksSurviveAnyNumberOfPoints) {
  std::mt19937 random(7);
  std::normal_distribution<double> noise;
  for (const int count : {9, 100, 1000, 12345}) {
    DownsampledSeries series(64);
    double low = std::numeric_limits<double>::infinity(), high = -low, sum = 0;
    for (int i = 0; i < count; ++i) {
      const double y = noise(random) + (i == count / 3 ? 50 : 0);
      low = std::min(low, y);
      high = std::max(high, y);
      sum += y;
      series.add(i, y);
    }
    double seen_low = std::numeric_limits<double>::infinity(), seen_high = -seen_low, seen_sum = 0;
    int64_t points = 0;
    double before = -1;
    for (const auto& bucket : series.buckets()) {
      seen_low = std::min(seen_low, bucket.min);
      seen_high = std::max(seen_high, bucket.max);
      seen_sum += bucket.sum;
      points += bucket.points;
      EXPECT_EQ(bucket.first_x, before + 1) << "no point is lost, none is counted twice";
      before = bucket.last_x;
    }
    EXPECT_EQ(seen_low, low);
    EXPECT_EQ(seen_high, high);
    EXPECT_NEAR(seen_sum, sum, 1e-9 * count);
    EXPECT_EQ(points, count);
    EXPECT_LE(series.buckets().size(), 64U);
    if (count > 64) {
      EXPECT_GE(series.buckets().size(), 32U);
    }
  }
}

TEST(DownsampledSeries, WhatIsNotFiniteIsCountedAndNull) {
  DownsampledSeries series(4);
  series.add(1, std::nan(""));
  series.add(2, std::numeric_limits<double>::infinity());
  series.add(3, 1.5);
  EXPECT_EQ(json_of(series),
            nlohmann::json::parse(R"({"points":3,"not_finite":2,"x":[1,2,3],"mean":[null,null,1.5],"last":[3,1.5]})"));
  for (int i = 4; i <= 9; ++i) series.add(i, std::nan(""));
  const auto shown = json_of(series);
  EXPECT_EQ(shown.at("not_finite"), 8);
  EXPECT_EQ(shown.at("max").size(), shown.at("x").size());
  EXPECT_TRUE(shown.at("last").at(1).is_null());
}

}  // namespace
}  // namespace megalith::observe
