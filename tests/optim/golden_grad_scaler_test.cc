#include <gtest/gtest.h>

#include <limits>

#include "megalith/base/error.h"
#include "megalith/optim/grad_scaler.h"
#include "tests/layout/golden_shape.h"
#include "tests/support/golden.h"

namespace megalith::optim {
namespace {

using layout::golden_list;
using nlohmann::json;

json grad_scaler_file() { return testing::golden_json("parallel/grad_scaler.json"); }

GradScalerParams scaler_params(const json& c) {
  return {.initial_scale = c.at("initial_scale").get<double>(),
          .min_scale = c.at("min_scale").get<double>(),
          .growth_factor = c.at("growth_factor").get<double>(),
          .backoff_factor = c.at("backoff_factor").get<double>(),
          .growth_interval = c.at("growth_interval").get<int64_t>(),
          .hysteresis = c.at("hysteresis").get<int64_t>()};
}

// Written so that reading it as float32 gives the exact value; "inf" is text.
float f32(const json& value) {
  if (value.is_string()) return std::numeric_limits<float>::infinity();
  return static_cast<float>(value.get<double>());
}

TEST(GoldenGradScaler, grad_scaler_json_cases) {
  for (const json& c : golden_list(grad_scaler_file(), "cases")) {
    SCOPED_TRACE(c.at("params").dump() + " " + c.at("found_inf").dump());
    GradScaler scaler = GradScaler::dynamic(scaler_params(c.at("params")));
    const auto found_inf = c.at("found_inf").get<std::string>();
    ASSERT_EQ(found_inf.size(), c.at("trace").size());
    for (size_t i = 0; i < found_inf.size(); ++i) {
      scaler.update(found_inf[i] == '1');
      const json& row = c.at("trace").at(i);
      EXPECT_EQ(scaler.scale(), f32(row.at(0))) << "update " << i;
      EXPECT_EQ(scaler.inverse_scale(), f32(row.at(1))) << "update " << i;
      EXPECT_EQ(scaler.state().growth_tracker, row.at(2).get<int64_t>()) << "update " << i;
      EXPECT_EQ(scaler.state().hysteresis_tracker, row.at(3).get<int64_t>()) << "update " << i;
    }
  }
}

TEST(GoldenGradScaler, grad_scaler_json_constant) {
  for (const json& c : golden_list(grad_scaler_file(), "constant")) {
    SCOPED_TRACE(c.dump());
    GradScaler scaler = GradScaler::constant(c.at("initial_scale").get<double>());
    for (const bool found_inf : {false, true, true}) {
      scaler.update(found_inf);
      EXPECT_EQ(scaler.scale(), f32(c.at("scale")));
      EXPECT_EQ(scaler.inverse_scale(), f32(c.at("inv_scale")));
    }
  }
}

TEST(GoldenGradScaler, grad_scaler_json_invalid) {
  for (const json& c : golden_list(grad_scaler_file(), "invalid")) {
    SCOPED_TRACE(c.dump());
    EXPECT_THROW(GradScaler::dynamic(scaler_params(c.at("params"))), ConfigError);
  }
}

}  // namespace
}  // namespace megalith::optim
