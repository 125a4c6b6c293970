#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/layout/microbatches.h"
#include "tests/layout/golden_shape.h"
#include "tests/support/golden.h"

namespace megalith::layout {
namespace {

using nlohmann::json;

json microbatches_file() { return testing::golden_json("parallel/microbatches.json"); }

BatchPlan plan_of(const json& cfg) {
  BatchPlan plan;
  plan.global_batch_size = optional_member<int64_t>(cfg, "global_batch_size");
  plan.micro_batch_size = cfg.at("micro_batch_size").get<int64_t>();
  plan.data_parallel_size = cfg.at("data_parallel_size").get<int64_t>();
  plan.rampup_batch_size = optional_member<std::vector<int64_t>>(cfg, "rampup_batch_size");
  plan.decrease_batch_size_if_needed = cfg.value("decrease_batch_size_if_needed", false);
  return plan;
}

std::vector<int64_t> row(const BatchSizes& sizes) {
  return {sizes.num_microbatches, sizes.global_batch_size, sizes.running_global_batch_size};
}

// A row [consumed, microbatches, current, running], or [consumed, null] where the update is refused.
void expect_row(const MicrobatchCalculator& calculator, const json& golden, bool consistency_check) {
  const auto consumed = golden.at(0).get<int64_t>();
  if (golden.at(1).is_null()) {
    EXPECT_THROW(calculator.at(consumed), ConfigError) << "consumed " << consumed;
    return;
  }
  const BatchSizes sizes = consistency_check ? calculator.at(consumed) : calculator.unchecked_at(consumed);
  const std::vector<int64_t> expected{golden.at(1).get<int64_t>(), golden.at(2).get<int64_t>(),
                                      golden.at(3).get<int64_t>()};
  EXPECT_EQ(row(sizes), expected) << "consumed " << consumed;
}

TEST(GoldenMicrobatches, microbatches_json_cases) {
  for (const json& c : golden_list(microbatches_file(), "cases")) {
    SCOPED_TRACE(golden_inputs(c));
    const MicrobatchCalculator calculator(plan_of(c.at("cfg")));
    EXPECT_EQ(row(calculator.unchecked_at(0)), c.at("initial").get<std::vector<int64_t>>());
    for (const json& update : c.value("updates", json::array())) {
      expect_row(calculator, update, c.value("consistency_check", false));
    }
  }
}

TEST(GoldenMicrobatches, microbatches_json_walks) {
  for (const json& c : golden_list(microbatches_file(), "walks")) {
    SCOPED_TRACE(golden_inputs(c));
    const MicrobatchCalculator calculator(plan_of(c.at("cfg")));
    ASSERT_FALSE(c.at("walk").empty());
    int64_t consumed = 0;
    for (const json& golden : c.at("walk")) {
      EXPECT_EQ(golden.at(0).get<int64_t>(), consumed);
      expect_row(calculator, golden, true);
      consumed += calculator.at(consumed).running_global_batch_size;
    }
  }
}

TEST(GoldenMicrobatches, microbatches_json_invalid) {
  for (const json& c : golden_list(microbatches_file(), "invalid")) {
    SCOPED_TRACE(c.dump());
    EXPECT_THROW(MicrobatchCalculator{plan_of(c.at("cfg"))}, ConfigError);
  }
}

}  // namespace
}  // namespace megalith::layout
