// Samplers: what holds for every size, batch and number of ranks.
#include "megalith/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "megalith/base/error.h"
#include "megalith/data/random.h"
#include "tests/support/expect.h"

namespace megalith::data {
namespace {

// All ranks' samples of the steps until an epoch ends, in order.
std::vector<int64_t> epoch_by_ranks(const Sampler& sampler, SamplerPosition& position, int64_t mbs, int64_t ga,
                                    int64_t dp) {
  std::vector<int64_t> seen;
  for (bool ended = false; !ended;) {
    const BatchShape whole{mbs, ga, dp, 0};
    const auto step = sampler.step(position, whole.samples());
    if (!step) break;
    for (int64_t rank = 0; rank < dp; ++rank)
      for (const auto& microbatch : deal(step->samples, {mbs, ga, dp, rank})) {
        EXPECT_EQ(std::ssize(microbatch), mbs);
        seen.insert(seen.end(), microbatch.begin(), microbatch.end());
      }
    position = step->after;
    ended = step->ends_epoch;
  }
  return seen;
}

TEST(Permutation, is_one_for_every_size) {
  for (int64_t n = 1; n < 300; ++n) {
    std::set<int64_t> seen;
    const Permutation order(n, 42);
    for (int64_t i = 0; i < n; ++i) seen.insert(order[i]);
    ASSERT_EQ(std::ssize(seen), n);
    ASSERT_EQ(*seen.begin(), 0);
    ASSERT_EQ(*seen.rbegin(), n - 1);
  }
}

TEST(Permutation, spreads_evenly) {
  // Over many seeds every element comes first about equally often.
  std::vector<int> first(10, 0);
  for (uint64_t seed = 0; seed < 10'000; ++seed) ++first[static_cast<size_t>(Permutation(10, seed)[0])];
  for (const int count : first) EXPECT_NEAR(count, 1000, 150);
}

// The order is on disk in a sense: a resumed run must continue with it. It may not change.
TEST(Permutation, does_not_change) {
  const Permutation order(10, 42);
  std::vector<int64_t> values;
  for (int64_t i = 0; i < 10; ++i) values.push_back(order[i]);
  EXPECT_EQ(values, (std::vector<int64_t>{1, 7, 6, 4, 0, 2, 9, 8, 3, 5}));
}

TEST(Sampler, every_sample_once_per_epoch_for_every_number_of_ranks) {
  for (const int64_t size : {24, 25, 31})
    for (int64_t dp = 1; dp <= 8; ++dp)
      for (const int64_t mbs : {1, 2, 3})
        for (const EpochEnd end : {EpochEnd::kDrop, EpochEnd::kWrap}) {
          const Sampler sampler({.size = size, .seed = 3, .end = end});
          SamplerPosition position;
          std::set<int64_t> orders;
          for (int64_t epoch = 0; epoch < 2; ++epoch) {
            const auto seen = epoch_by_ranks(sampler, position, mbs, 1, dp);
            const std::set<int64_t> distinct(seen.begin(), seen.end());
            const int64_t whole_steps = size / (mbs * dp) * mbs * dp;
            ASSERT_EQ(std::ssize(distinct), end == EpochEnd::kDrop ? whole_steps : size);
            ASSERT_EQ(std::ssize(distinct), std::min(std::ssize(seen), size));
            ASSERT_EQ(std::ssize(seen), sampler.steps_per_epoch(mbs * dp) * mbs * dp);
          }
        }
}

TEST(Sampler, resuming_with_other_ranks_sees_exactly_the_rest) {
  for (const EpochEnd end : {EpochEnd::kDrop, EpochEnd::kContinue, EpochEnd::kStop})
    for (int64_t dp = 1; dp <= 8; ++dp)
      for (int64_t other = 1; other <= 8; ++other)
        for (int64_t steps = 0; steps * dp < 64; ++steps) {
          const Sampler sampler({.size = 64, .seed = 3, .end = end});
          SamplerPosition position;
          std::multiset<int64_t> seen;
          for (int64_t i = 0; i < steps; ++i) {
            const auto step = sampler.step(position, dp);
            ASSERT_TRUE(step);
            seen.insert(step->samples.begin(), step->samples.end());
            position = step->after;
          }
          // As many whole steps of the other size as the epoch still has.
          for (int64_t left = (64 - steps * dp) / other; left > 0; --left) {
            const auto step = sampler.step(position, other);
            ASSERT_TRUE(step);
            seen.insert(step->samples.begin(), step->samples.end());
            position = step->after;
          }
          ASSERT_EQ(std::ssize(seen), steps * dp + (64 - steps * dp) / other * other);
          ASSERT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), seen.size());
        }
}

TEST(Sampler, the_order_does_not_depend_on_ranks) {
  const Sampler sampler({.size = 48, .seed = 1});
  std::vector<int64_t> one;
  for (int64_t dp = 1; dp <= 8; dp *= 2) {
    std::vector<int64_t> order;
    SamplerPosition position;
    for (int64_t i = 0; i < 48 / dp; ++i) {
      const auto step = sampler.step(position, dp);
      order.insert(order.end(), step->samples.begin(), step->samples.end());
      position = step->after;
    }
    if (dp == 1) one = order;
    EXPECT_EQ(order, one);
  }
  EXPECT_FALSE(std::ranges::is_sorted(one));
}

TEST(Sampler, epochs_and_seeds_have_orders_of_their_own) {
  const auto order = [](uint64_t seed, int64_t epoch, bool shuffle = true) {
    return Sampler({.size = 32, .shuffle = shuffle, .seed = seed}).step({epoch, 0}, 32)->samples;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  EXPECT_NE(order(1, 0), order(2, 0));
  EXPECT_TRUE(std::ranges::is_sorted(order(1, 0, false)));
}

// 1000 samples of 1 to 97 tokens: every sample once, little padding in a micro-batch, another order in each epoch, and
// the same samples after an interruption with another batch size.
TEST(Sampler, groups_samples_of_similar_length) {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 1000; ++i) lengths.push_back(1 + i * 31 % 97);
  SamplerOptions options{.size = 1000, .seed = 3};
  const auto padding = [&](const SamplerOptions& how) {
    const Sampler sampler(how);
    SamplerPosition at;
    int64_t tokens = 0, room = 0;
    std::set<int64_t> seen;
    for (int step = 0; step < 100; ++step) {
      const auto taken = sampler.step(at, 10);
      at = taken->after;
      int32_t longest = 0;
      for (const int64_t sample : taken->samples) {
        seen.insert(sample);
        tokens += lengths[static_cast<size_t>(sample)];
        longest = std::max(longest, lengths[static_cast<size_t>(sample)]);
      }
      room += 10 * longest;
    }
    EXPECT_EQ(seen.size(), 1000U);
    return 1 - static_cast<double>(tokens) / static_cast<double>(room);
  };
  EXPECT_GT(padding(options), 0.3);
  options.by_length = true;
  EXPECT_THROW(Sampler{options}, InternalError);
  options.lengths = std::make_shared<const std::vector<int32_t>>(lengths);
  EXPECT_LT(padding(options), 0.06);
  const Sampler sampler(options);
  EXPECT_NE(sampler.step({0, 0}, 10)->samples, sampler.step({1, 0}, 10)->samples);
  std::vector<int64_t> continued = sampler.step({0, 240}, 15)->samples;
  const std::vector<int64_t> rest = sampler.step({0, 255}, 5)->samples;
  continued.insert(continued.end(), rest.begin(), rest.end());
  EXPECT_EQ(continued, sampler.step({0, 240}, 20)->samples);  // over the border of a group of 250
}

TEST(Sampler, an_endless_stream_crosses_epochs) {
  const Sampler sampler({.size = 5, .shuffle = false, .end = EpochEnd::kContinue});
  const auto step = sampler.step({0, 3}, 4);
  EXPECT_EQ(step->samples, (std::vector<int64_t>{3, 4, 0, 1}));
  EXPECT_EQ(step->after, (SamplerPosition{1, 2}));
  EXPECT_TRUE(step->ends_epoch);
  EXPECT_EQ(sampler.position_of(7, 4), (SamplerPosition{1, 2}));
}

TEST(Sampler, megatron_single_ends) {
  const Sampler sampler({.size = 5, .shuffle = false, .end = EpochEnd::kStop});
  EXPECT_EQ(sampler.step({0, 2}, 2)->samples, (std::vector<int64_t>{2, 3}));
  EXPECT_FALSE(sampler.step({0, 4}, 2));
  try {
    sampler.position_of(5, 2);
    FAIL();
  } catch (const ConfigError& error) {
    testing::expect_contains(error.what(), "no samples left to consume: 5 of 5");
  }
}

TEST(Sampler, too_few_samples_are_reported) {
  EXPECT_THROW(Sampler({.size = 0}), DataError);
  try {
    Sampler({.size = 3}).step({}, 4);
    FAIL();
  } catch (const ConfigError& error) {
    testing::expect_contains(error.what(), "a step takes 4 samples and the dataset has 3");
  }
}

TEST(Deal, micro_batches_go_round_the_ranks) {
  std::vector<int64_t> samples(12);
  for (int64_t i = 0; i < 12; ++i) samples[static_cast<size_t>(i)] = i;
  EXPECT_EQ(deal(samples, {2, 2, 3, 1}), (std::vector<std::vector<int64_t>>{{2, 3}, {8, 9}}));
}

}  // namespace
}  // namespace megalith::data
