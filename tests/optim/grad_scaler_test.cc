#include "megalith/optim/grad_scaler.h"

#include <gtest/gtest.h>

#include <limits>

#include "megalith/base/error.h"
#include "tests/support/expect.h"

namespace megalith::optim {
namespace {

using testing::error_of;
using testing::expect_contains;

TEST(GradScaler, a_resumed_run_continues_as_if_it_had_not_stopped) {
  const GradScalerParams params{.initial_scale = 1024, .growth_interval = 3, .hysteresis = 2};
  GradScaler straight = GradScaler::dynamic(params);
  for (const bool found_inf : {false, true, false, true, false}) straight.update(found_inf);
  GradScaler resumed = GradScaler::dynamic(params);
  resumed.load(parse_grad_scaler_state(to_json_text(straight.state()), "checkpoint"));
  for (const bool found_inf : {true, false, false, false, false, true, true}) {
    straight.update(found_inf);
    resumed.update(found_inf);
    EXPECT_EQ(resumed.state(), straight.state());
  }
}

TEST(GradScaler, a_constant_scale_ignores_a_stored_one) {
  GradScaler scaler = GradScaler::constant(8);
  scaler.load({1024, 3, 1});
  EXPECT_EQ(scaler.scale(), 8);
}

TEST(GradScaler, infinity_is_seen_and_survives_json) {
  GradScaler scaler = GradScaler::dynamic({.initial_scale = 3e38, .growth_interval = 1});
  EXPECT_TRUE(scaler.is_finite());
  scaler.update(false);
  EXPECT_FALSE(scaler.is_finite());
  EXPECT_EQ(scaler.inverse_scale(), 0);
  EXPECT_EQ(parse_grad_scaler_state(to_json_text(scaler.state()), "checkpoint"), scaler.state());
}

TEST(GradScaler, bad_state_is_refused_by_name) {
  const auto refused = [](const char* text) {
    return error_of<DataError>([&] { parse_grad_scaler_state(text, "run/state.json"); });
  };
  expect_contains(refused("nothing"), "run/state.json");
  expect_contains(refused(R"({"growth_tracker":1,"hysteresis_tracker":1})"), "\"scale\"");
  expect_contains(refused(R"({"scale":-1,"growth_tracker":1,"hysteresis_tracker":1})"), "\"scale\"");
  expect_contains(refused(R"({"scale":1,"growth_tracker":1.5,"hysteresis_tracker":1})"), "\"growth_tracker\"");
  expect_contains(refused(R"({"scale":1,"growth_tracker":1})"), "\"hysteresis_tracker\"");
  GradScaler scaler = GradScaler::dynamic({});
  EXPECT_THROW(scaler.load({-1, 0, 2}), DataError);
  EXPECT_THROW(scaler.load({1, -1, 2}), DataError);
  EXPECT_EQ(scaler.scale(), 4294967296.0F);
}

}  // namespace
}  // namespace megalith::optim
