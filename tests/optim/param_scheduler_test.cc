#include "megalith/optim/schedule/param_scheduler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "megalith/base/error.h"
#include "tests/support/expect.h"

namespace megalith::optim {
namespace {

using testing::error_of;
using testing::expect_contains;

ScheduleParams usual_params() {
  ScheduleParams params;
  params.max_lr = 1e-3;
  params.lr_warmup_steps = 2.5;
  params.lr_decay_steps = 20;
  params.lr_decay_style = config::LrDecayStyle::kCosine;
  params.end_wd = 0.1;
  params.wd_incr_style = config::WeightDecayStyle::kLinear;
  params.wd_incr_steps = 20;
  return params;
}

TEST(ParamScheduler, a_resumed_run_continues_as_if_it_had_not_stopped) {
  const std::vector<RateGroup> groups{{}, {.max_lr = 5e-3, .wd_mult = 0}};
  ParamScheduler straight(LrSchedule(usual_params()), groups);
  for (int i = 0; i < 7; ++i) straight.step(1);
  const std::string saved = to_json_text(straight.state());

  ParamScheduler resumed(LrSchedule(usual_params()), groups);
  resumed.load(parse_scheduler_state(saved, "checkpoint"));
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(resumed.num_steps(), straight.num_steps());
    for (size_t group = 0; group < groups.size(); ++group) {
      EXPECT_EQ(resumed.lr(group), straight.lr(group));
      EXPECT_EQ(resumed.weight_decay(group), straight.weight_decay(group));
    }
    EXPECT_EQ(resumed.state(), straight.state());
    straight.step(1);
    resumed.step(1);
  }
}

TEST(ParamScheduler, a_value_that_differs_is_named_and_nothing_changes) {
  ParamScheduler scheduler(LrSchedule(usual_params()), {{}});
  scheduler.step(3);
  const SchedulerState before = scheduler.state();
  const auto refused = [&](auto change) {
    SchedulerState other = before;
    change(other);
    const std::string message = error_of<ConfigError>([&] { scheduler.load(other); });
    EXPECT_EQ(scheduler.state(), before);
    return message;
  };
  const std::string lr = refused([](auto& s) { s.max_lr = 2e-3; });
  expect_contains(lr, "learning_rate) is 0.001 here and 0.002 in the checkpoint");
  expect_contains(lr, "override_opt_param_scheduler");
  expect_contains(refused([](auto& s) { s.min_lr = 1e-5; }), "min_lr");
  expect_contains(refused([](auto& s) { s.lr_warmup_steps = 3; }), "lr_warmup_steps");
  expect_contains(refused([](auto& s) { s.lr_decay_steps = 30; }), "lr_decay_steps");
  expect_contains(refused([](auto& s) { s.lr_decay_style = config::LrDecayStyle::kLinear; }),
                  "is cosine here and linear in the checkpoint");
  expect_contains(refused([](auto& s) { s.weight_decay->end_wd = 0.3; }), "end_weight_decay");
}

TEST(ParamScheduler, a_checkpoint_whose_values_make_no_schedule_is_refused) {
  ParamScheduler scheduler(LrSchedule(usual_params()), {{}}, SchedulerLoad::kUseCheckpoint);
  SchedulerState state = scheduler.state();
  state.lr_warmup_steps = 50;
  expect_contains(error_of<DataError>([&] { scheduler.load(state); }), "lr_warmup_steps is 50");
  state = scheduler.state();
  state.num_steps = -1;
  expect_contains(error_of<DataError>([&] { scheduler.load(state); }), "num_steps -1");
  EXPECT_EQ(scheduler.num_steps(), 0);
}

RateFunctions own_functions() {
  return {.lr = [](int64_t progress) { return 1e-3 / static_cast<double>(1 + progress); },
          .weight_decay = [](int64_t progress) { return 0.01 * static_cast<double>(progress); }};
}

TEST(ParamScheduler, custom_functions_replace_the_named_curves) {
  const std::vector<RateGroup> groups{{}, {.lr_mult = 2, .wd_mult = 0}};
  ParamScheduler scheduler(LrSchedule(usual_params(), {}, own_functions()), groups);
  EXPECT_EQ(scheduler.lr(0), 1e-3);
  EXPECT_EQ(scheduler.weight_decay(0), 0);
  scheduler.step(3);
  EXPECT_EQ(scheduler.lr(0), 1e-3 / 4);
  EXPECT_EQ(scheduler.lr(1), 2 * (1e-3 / 4));
  EXPECT_EQ(scheduler.weight_decay(0), 0.03);
  EXPECT_EQ(scheduler.weight_decay(1), 0);
  // One of them alone leaves the other curve.
  const LrSchedule named(usual_params()), mixed(usual_params(), {}, {.lr = own_functions().lr});
  EXPECT_EQ(mixed.lr(9), 1e-4);
  EXPECT_EQ(mixed.weight_decay(9), named.weight_decay(9));
}

TEST(ParamScheduler, custom_functions_continue_at_the_saved_progress) {
  ParamScheduler straight(LrSchedule(usual_params(), {}, own_functions()), {{}});
  straight.step(7);
  ScheduleParams longer = usual_params();
  longer.max_lr = 0.5;
  longer.lr_decay_steps = longer.wd_incr_steps = 500;
  // Values that the functions replace may have changed; those of a curve that is still there may not.
  ParamScheduler resumed(LrSchedule(longer, {}, own_functions()), {{}});
  resumed.load(parse_scheduler_state(to_json_text(straight.state()), "checkpoint"));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(resumed.num_steps(), straight.num_steps());
    EXPECT_EQ(resumed.lr(0), straight.lr(0));
    EXPECT_EQ(resumed.weight_decay(0), straight.weight_decay(0));
    straight.step(1);
    resumed.step(1);
  }
  EXPECT_EQ(resumed.state().max_lr, 0.5);
  ParamScheduler mixed(LrSchedule(longer, {}, {.lr = own_functions().lr}), {{}});
  expect_contains(error_of<ConfigError>([&] { mixed.load(straight.state()); }), "wd_incr_steps");
}

TEST(ParamScheduler, a_custom_function_must_return_a_rate) {
  const auto message = [](double value) {
    const LrSchedule schedule(usual_params(), {}, {.lr = [=](int64_t progress) { return progress < 2 ? 0 : value; }});
    ParamScheduler scheduler(schedule, {{}});
    return error_of<ConfigError>([&] { scheduler.step(2); });
  };
  expect_contains(message(std::nan("")),
                  "returned a learning rate of nan at progress 2; it must be a finite number >= 0");
  expect_contains(message(-1), "learning rate of -1");
  EXPECT_EQ(message(1), "");
}

TEST(ParamScheduler, groups_that_do_not_fit_are_refused) {
  const auto refused = [](RateGroup group) {
    return error_of<ConfigError>([&] { ParamScheduler(LrSchedule(usual_params()), {{}, group}); });
  };
  expect_contains(refused({.max_lr = 1e-3, .min_lr = 1e-2}), "min_lr of parameter group 1 is 0.01");
  expect_contains(refused({.lr_mult = -1}), "lr_mult of parameter group 1 is -1");
  expect_contains(refused({.end_wd = -0.5}), "end_wd of parameter group 1 is -0.5");
}

TEST(ParamScheduler, both_ways_to_load_at_once_are_refused) {
  expect_contains(error_of<ConfigError>([] { scheduler_load(true, true); }), "override_opt_param_scheduler and use_");
  EXPECT_EQ(scheduler_load(false, false), SchedulerLoad::kMustMatch);
  EXPECT_EQ(scheduler_load(true, false), SchedulerLoad::kOverride);
  EXPECT_EQ(scheduler_load(false, true), SchedulerLoad::kUseCheckpoint);
}

TEST(SchedulerState, survives_json) {
  SchedulerState state = ParamScheduler(LrSchedule(usual_params()), {}).state();
  state.num_steps = 123456789012345;
  EXPECT_EQ(parse_scheduler_state(to_json_text(state), "checkpoint"), state);
  state.weight_decay.reset();
  EXPECT_EQ(parse_scheduler_state(to_json_text(state), "checkpoint"), state);
}

TEST(SchedulerState, older_keys) {
  const SchedulerState state = parse_scheduler_state(
      R"({"start_lr":0.001,"min_lr":0,"warmup_steps":5,"decay_steps":20,"decay_style":"cosine","num_iters":8})", "old");
  EXPECT_EQ(state.max_lr, 0.001);
  EXPECT_EQ(state.lr_warmup_steps, 5);
  EXPECT_EQ(state.lr_decay_steps, 20);
  EXPECT_EQ(state.num_steps, 8);
  EXPECT_FALSE(state.weight_decay);
}

TEST(SchedulerState, bad_files_are_named_with_the_key) {
  const auto refused = [](const std::string& text) {
    return error_of<DataError>([&] { parse_scheduler_state(text, "run/state.json"); });
  };
  const auto with = [&](const std::string& key, const std::string& value) {
    std::map<std::string, std::string> fields{
        {"max_lr", "1"},         {"min_lr", "0"},   {"lr_warmup_steps", "5"},
        {"num_steps", "8"},      {"start_wd", "0"}, {"lr_decay_style", "\"cosine\""},
        {"wd_incr_steps", "2"},  {"end_wd", "0"},   {"wd_incr_style", "\"constant\""},
        {"lr_decay_steps", "20"}};
    fields[key] = value;
    std::string text;
    for (const auto& [name, field] : fields) text += (text.empty() ? "{\"" : ",\"") + name + "\":" + field;
    return refused(text + "}");
  };
  EXPECT_EQ(with("max_lr", "2"), "");
  expect_contains(refused("[1"), "run/state.json");
  expect_contains(refused("{}"), "\"max_lr\"");
  expect_contains(with("max_lr", "null"), "\"max_lr\" of the scheduler state is null");
  expect_contains(with("min_lr", "1e999"), "run/state.json: ");
  expect_contains(with("num_steps", "1.5"), "\"num_steps\"");
  expect_contains(with("num_steps", "-3"), "\"num_steps\"");
  expect_contains(with("lr_decay_steps", "1e300"), "\"lr_decay_steps\"");
  expect_contains(with("lr_decay_style", "\"bogus\""), "inverse-square-root");
  expect_contains(with("wd_incr_style", "7"), "\"wd_incr_style\"");
}

}  // namespace
}  // namespace megalith::optim
