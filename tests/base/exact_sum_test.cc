#include "megalith/base/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace megalith {
namespace {

double exact(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum.value();
}

TEST(ExactSum, GivesSumsThatADoubleHolds) {
  EXPECT_EQ(exact({}), 0);
  EXPECT_EQ(exact({1, 2, 3.5}), 6.5);
  EXPECT_EQ(exact({1e300, 1, -1e300}), 1);
  EXPECT_EQ(exact({5e-324, 5e-324, 5e-324}), 1.5e-323);
  EXPECT_EQ(exact({std::numeric_limits<double>::max()}), std::numeric_limits<double>::max());
  EXPECT_EQ(exact({-3, 1}), -2);
}

TEST(ExactSum, DoesNotDependOnTheOrder) {
  std::mt19937_64 rng(1);
  std::vector<double> values(20'000);
  for (double& value : values)
    value = std::ldexp(static_cast<double>(rng()) / 3e18, static_cast<int>(rng() % 400) - 300);
  const double expected = exact(values);
  for (int round = 0; round < 5; ++round) {
    std::ranges::shuffle(values, rng);
    EXPECT_EQ(exact(values), expected);
    ExactSum parts[3], all;
    for (size_t i = 0; i < values.size(); ++i) parts[i % 3].add(values[i]);
    for (const ExactSum& part : parts) all.add(part);
    EXPECT_EQ(all.value(), expected);
  }
}

TEST(ExactSum, WordsOfSeveralMayBeAddedOneByOne) {
  ExactSum a, b, whole;
  for (const double x : {0.1, 1e-200, 7e20}) a.add(x), whole.add(x);
  for (const double x : {0.2, -3e-9, 7e20}) b.add(x), whole.add(x);
  ExactSum::Words words = a.words();
  const ExactSum::Words more = b.words();
  for (size_t i = 0; i < words.size(); ++i) words[i] += more[i];
  ExactSum sum;
  sum.add_words(words);
  EXPECT_EQ(sum.value(), whole.value());
}

TEST(ExactSum, RemembersNansAndInfinities) {
  for (const double odd : {std::numeric_limits<double>::infinity(), std::nan(""), -HUGE_VAL}) {
    ExactSum sum;
    sum.add(1);
    EXPECT_FALSE(sum.non_finite());
    sum.add(odd);
    EXPECT_TRUE(sum.non_finite());
    EXPECT_TRUE(std::isnan(sum.value()));
  }
}

}  // namespace
}  // namespace megalith
