#include <gtest/gtest.h>

#include <numeric>

#include "megalith/layout/zigzag.h"
#include "tests/layout/golden_shape.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"

namespace megalith::layout {
namespace {

using nlohmann::json;
using Pairs = std::vector<std::vector<int64_t>>;

json context_parallel_file() { return testing::golden_json("parallel/context_parallel.json"); }

std::vector<int64_t> written_out(const std::vector<TokenRange>& ranges) {
  std::vector<int64_t> indices;
  for (const auto& [begin, end] : ranges)
    for (int64_t i = begin; i < end; ++i) indices.push_back(i);
  return indices;
}

TEST(GoldenContextParallel, context_parallel_json_zigzag) {
  for (const json& c : golden_list(context_parallel_file(), "zigzag")) {
    SCOPED_TRACE(fmt::format("seq {} cp {}", c.at("seq").get<int>(), c.at("cp").get<int>()));
    const std::vector<int64_t> cumulative{0, c.at("seq").get<int64_t>()};
    const int cp = c.at("cp").get<int>();
    ASSERT_EQ(c.at("indices").size(), static_cast<size_t>(cp));
    for (int rank = 0; rank < cp; ++rank)
      EXPECT_EQ(written_out(zigzag_ranges(cumulative, cp, rank)),
                c.at("indices").at(static_cast<size_t>(rank)).get<std::vector<int64_t>>())
          << "rank " << rank;
  }
}

TEST(GoldenContextParallel, context_parallel_json_thd) {
  for (const json& c : golden_list(context_parallel_file(), "thd")) {
    SCOPED_TRACE(c.at("cu_seqlens_padded").dump());
    const auto cumulative = c.at("cu_seqlens_padded").get<std::vector<int64_t>>();
    const int cp = c.at("cp").get<int>();
    for (int rank = 0; rank < cp; ++rank) {
      const std::vector<TokenRange> ranges = zigzag_ranges(cumulative, cp, rank);
      Pairs pairs;
      for (const auto& [begin, end] : ranges) pairs.push_back({begin, end});
      EXPECT_EQ(pairs, c.at("ranges").at(static_cast<size_t>(rank)).get<Pairs>()) << "rank " << rank;
      if (!c.contains("indices")) continue;
      EXPECT_EQ(written_out(ranges), c.at("indices").at(static_cast<size_t>(rank)).get<std::vector<int64_t>>())
          << "rank " << rank;
    }
  }
}

// The message says what would fit.
TEST(GoldenContextParallel, context_parallel_json_invalid) {
  for (const json& c : golden_list(context_parallel_file(), "invalid")) {
    const auto seq = c.at("seq").get<int64_t>();
    const int cp = c.at("cp").get<int>();
    const int64_t fits = (seq / (2 * cp) + 1) * 2 * cp;
    testing::expect_error<DataError>(
        [&] {
          zigzag_ranges(std::vector<int64_t>{0, seq}, cp, 0);
        },
        {fmt::format("{} tokens", seq), "2 * context_parallel_size", fmt::format("pad it to {}", fits)});
  }
}

}  // namespace
}  // namespace megalith::layout
