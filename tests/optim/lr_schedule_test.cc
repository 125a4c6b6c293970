#include "megalith/optim/schedule/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "megalith/base/error.h"
#include "tests/support/expect.h"

namespace megalith::optim {
namespace {

using config::LrDecayStyle;
using config::WeightDecayStyle;
using config::WsdDecayStyle;
using testing::expect_contains;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

ScheduleParams usual_schedule() {
  ScheduleParams params;
  params.max_lr = 1e-3;
  params.min_lr = 1e-5;
  params.lr_warmup_steps = 10;
  params.lr_decay_steps = 100;
  params.wsd_decay_steps = 30;
  params.start_wd = params.end_wd = 0.1;
  params.wd_incr_steps = 100;
  return params;
}

// The message of the ConfigError.
template <typename Change>
std::string refusal(Change change) {
  ScheduleParams params = usual_schedule();
  change(params);
  try {
    const LrSchedule schedule(params);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(LrSchedule, stays_between_floor_and_peak_and_never_rises_after_the_warm_up) {
  for (const auto& [style, name] : config::EnumNames<LrDecayStyle>::kNames) {
    for (const auto& [wsd_style, wsd_name] : config::EnumNames<WsdDecayStyle>::kNames) {
      SCOPED_TRACE(std::string(name) + " " + std::string(wsd_name));
      ScheduleParams params = usual_schedule();
      params.lr_decay_style = style;
      params.lr_wsd_decay_style = wsd_style;
      const LrSchedule schedule(params);
      EXPECT_EQ(schedule.lr(0), 0);
      EXPECT_DOUBLE_EQ(schedule.lr(10), 1e-3);
      for (int64_t n = 11; n <= 120; ++n) {
        EXPECT_LE(schedule.lr(n), schedule.lr(n - 1) * (1 + 1e-12)) << n;
        EXPECT_GE(schedule.lr(n), 1e-5 * (1 - 1e-12)) << n;
      }
      const bool floor = style != LrDecayStyle::kConstant;
      EXPECT_DOUBLE_EQ(schedule.lr(101), floor ? 1e-5 : 1e-3);
      EXPECT_DOUBLE_EQ(schedule.lr(std::numeric_limits<int64_t>::max()), floor ? 1e-5 : 1e-3);
    }
  }
}

TEST(LrSchedule, multipliers_of_a_group) {
  const LrSchedule schedule(usual_schedule());
  const RateGroup group{.lr_mult = 16, .wd_mult = 0};
  for (const int64_t n : {0, 5, 10, 50, 100, 101}) {
    EXPECT_DOUBLE_EQ(schedule.lr(n, group), 16 * schedule.lr(n)) << n;
    EXPECT_EQ(schedule.weight_decay(n, group), 0) << n;
  }
}

TEST(LrSchedule, a_group_with_rates_of_its_own) {
  const LrSchedule schedule(usual_schedule());
  const RateGroup group{.max_lr = 5e-3, .min_lr = 1e-4};
  EXPECT_DOUBLE_EQ(schedule.lr(10, group), 5e-3);
  EXPECT_DOUBLE_EQ(schedule.lr(100, group), 1e-4);
  EXPECT_DOUBLE_EQ(schedule.lr(55, group), (5e-3 + 1e-4) / 2);
}

TEST(LrSchedule, weight_decay_meets_both_ends) {
  for (const WeightDecayStyle style : {WeightDecayStyle::kLinear, WeightDecayStyle::kCosine}) {
    ScheduleParams params = usual_schedule();
    params.wd_incr_style = style;
    params.start_wd = 0.01;
    const LrSchedule schedule(params);
    EXPECT_DOUBLE_EQ(schedule.weight_decay(0), 0.01);
    EXPECT_DOUBLE_EQ(schedule.weight_decay(50), 0.055);
    EXPECT_DOUBLE_EQ(schedule.weight_decay(100), 0.1);
    EXPECT_DOUBLE_EQ(schedule.weight_decay(101), 0.1);
  }
}

TEST(LrSchedule, invalid_rates_are_refused_by_name) {
  for (const double bad : {kNan, kInfinity, -1e-9}) {
    expect_contains(refusal([&](auto& p) { p.max_lr = bad; }), "max_lr is ");
    expect_contains(refusal([&](auto& p) { p.min_lr = bad; }), "min_lr is ");
    expect_contains(refusal([&](auto& p) { p.init_lr = bad; }), "init_lr is ");
    expect_contains(refusal([&](auto& p) { p.lr_warmup_steps = bad; }), "lr_warmup_steps is ");
    expect_contains(refusal([&](auto& p) { p.start_wd = bad; }), "start_wd is ");
    expect_contains(refusal([&](auto& p) { p.end_wd = bad; }), "end_wd is ");
  }
}

TEST(LrSchedule, values_that_do_not_fit_are_refused_by_name) {
  expect_contains(refusal([](auto& p) { p.min_lr = 2e-3; }), "min_lr is 0.002, more than max_lr 0.001");
  expect_contains(refusal([](auto& p) { p.init_lr = 2e-3; }), "init_lr is 0.002, more than max_lr 0.001");
  expect_contains(refusal([](auto& p) { p.lr_warmup_steps = 100; }), "lr_warmup_steps is 100 steps");
  expect_contains(refusal([](auto& p) { p.lr_decay_steps = 0; }), "lr_decay_steps is 0");
  expect_contains(refusal([](auto& p) {
                    p.lr_decay_style = LrDecayStyle::kWsd;
                    p.wsd_decay_steps.reset();
                  }),
                  "wsd_decay_steps");
  expect_contains(refusal([](auto& p) { p.end_wd = 0.05; }), "end_wd is 0.05, less than start_wd 0.1");
  expect_contains(refusal([](auto& p) { p.end_wd = 0.2; }), "wd_incr_style constant");
  expect_contains(refusal([](auto& p) { p.wd_incr_steps = -1; }), "wd_incr_steps is -1");
}

TEST(LrSchedule, every_problem_is_reported_at_once) {
  const std::string message = refusal([](auto& p) {
    p.min_lr = kNan;
    p.lr_decay_steps = -5;
  });
  expect_contains(message, "min_lr is nan");
  expect_contains(message, "lr_decay_steps is -5");
}

}  // namespace
}  // namespace megalith::optim
