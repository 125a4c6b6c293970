#include <gtest/gtest.h>

#include <map>

#include "megalith/base/error.h"
#include "megalith/layout/rng_seeds.h"
#include "tests/layout/golden_shape.h"
#include "tests/support/golden.h"

namespace megalith::layout {
namespace {

using nlohmann::json;

json rng_file() { return testing::golden_json("parallel/rng.json"); }

const std::map<std::string, int64_t RngSeeds::*>& streams() {
  static const std::map<std::string, int64_t RngSeeds::*> table{{"cpu", &RngSeeds::cpu},
                                                                {"default_cuda", &RngSeeds::default_stream},
                                                                {"data_parallel", &RngSeeds::data_parallel},
                                                                {"model_parallel", &RngSeeds::model_parallel},
                                                                {"expert_parallel", &RngSeeds::expert_parallel}};
  return table;
}

RngSeeds direct_seeds(const json& c) {
  return seeds_for_base(c.at("seed").get<int64_t>(), c.value("tp_rank", 0), c.value("ep_rank", 0),
                        c.value("etp_rank", 0));
}

TEST(GoldenRng, rng_json_direct) {
  for (const json& c : golden_list(rng_file(), "direct")) {
    SCOPED_TRACE(c.dump());
    const RngSeeds seeds = direct_seeds(c);
    for (const auto& [stream, member] : streams()) {
      if (c.contains(stream)) {
        EXPECT_EQ(seeds.*member, c.at(stream).get<int64_t>()) << stream;
      }
    }
  }
}

TEST(GoldenRng, rng_json_worlds) {
  for (const json& c : golden_list(rng_file(), "worlds")) {
    SCOPED_TRACE(golden_inputs(c));
    const RankGrid grid(golden_shape(c));
    for (const auto& [stream, golden] : c.at("seeds").items()) {
      ASSERT_TRUE(streams().contains(stream)) << stream;
      std::vector<int64_t> values;
      for (int rank = 0; rank < grid.world_size(); ++rank) {
        const RngSeeds seeds =
            launcher_seeds(c.at("seed").get<int64_t>(), c.value("data_parallel_random_init", false), grid, rank);
        values.push_back(seeds.*streams().at(stream));
      }
      EXPECT_EQ(values, golden.get<std::vector<int64_t>>()) << stream;
    }
  }
}

TEST(GoldenRng, rng_json_invalid) {
  const RankGrid one_rank{GridShape{}};
  for (const json& c : golden_list(rng_file(), "invalid")) {
    SCOPED_TRACE(c.dump());
    if (c.at("entry") == "core") {
      EXPECT_THROW(direct_seeds(c), ConfigError);
    } else {
      EXPECT_THROW(launcher_seeds(optional_member<int64_t>(c, "seed"), false, one_rank, 0), ConfigError);
    }
  }
}

}  // namespace
}  // namespace megalith::layout
