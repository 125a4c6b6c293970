#include <gtest/gtest.h>

#include "megalith/config/derive.h"
#include "megalith/config/parser.h"
#include "megalith/config/validate.h"
#include "megalith/optim/schedule/param_scheduler.h"
#include "megalith/optim/schedule/run_schedule.h"
#include "megalith/run/resolve/schedule.h"
#include "tests/optim/golden_schedule.h"

namespace megalith::optim {
namespace {

using layout::golden_list;
using layout::optional_member;
using nlohmann::json;

std::vector<RateGroup> groups_of(const json& list) {
  std::vector<RateGroup> groups;
  for (const json& c : list)
    groups.push_back({.max_lr = optional_member<double>(c, "max_lr"),
                      .min_lr = optional_member<double>(c, "min_lr"),
                      .start_wd = optional_member<double>(c, "start_wd"),
                      .end_wd = optional_member<double>(c, "end_wd"),
                      .lr_mult = c.value("lr_mult", 1.0),
                      .wd_mult = c.value("wd_mult", 1.0)});
  return groups;
}

void expect_relative(double value, double golden, const char* what) {
  EXPECT_NEAR(value, golden, 1e-12 * std::abs(golden)) << what;
}

// A row [num_steps, lr, wd, lr, wd, …].
void expect_row(const ParamScheduler& scheduler, const json& row) {
  SCOPED_TRACE(row.dump());
  ASSERT_EQ(scheduler.num_steps(), row.at(0).get<int64_t>());
  ASSERT_EQ(row.size(), 1 + 2 * scheduler.num_groups());
  for (size_t i = 0; i < scheduler.num_groups(); ++i) {
    expect_relative(scheduler.lr(i), row.at(1 + 2 * i).get<double>(), "lr");
    expect_relative(scheduler.weight_decay(i), row.at(2 + 2 * i).get<double>(), "wd");
  }
}

void expect_trace(ParamScheduler& scheduler, const json& c) {
  const json& trace = c.at("trace");
  ASSERT_EQ(trace.size(), c.at("increments").size() + 1);
  expect_row(scheduler, trace.at(0));
  for (size_t i = 1; i < trace.size(); ++i) {
    scheduler.step(c.at("increments").at(i - 1).get<int64_t>());
    expect_row(scheduler, trace.at(i));
  }
}

SchedulerLoad mode_of(const std::string& mode) {
  if (mode == "none") return SchedulerLoad::kMustMatch;
  EXPECT_TRUE(mode == "override" || mode == "use_checkpoint") << mode;
  return mode == "override" ? SchedulerLoad::kOverride : SchedulerLoad::kUseCheckpoint;
}

TEST(GoldenLrSchedule, lr_schedule_json_cases) {
  for (const json& c : golden_list(lr_schedule_file(), "cases")) {
    SCOPED_TRACE(c.at("name").dump() + " " + c.at("params").dump());
    ParamScheduler scheduler(LrSchedule(golden_params(c.at("params"))), groups_of(c.at("param_groups")));
    expect_trace(scheduler, c);
    EXPECT_EQ(json::parse(to_json_text(scheduler.state())), c.at("state"));
  }
}

TEST(GoldenLrSchedule, lr_schedule_json_resume) {
  for (const json& c : golden_list(lr_schedule_file(), "resume")) {
    SCOPED_TRACE(c.at("mode").dump() + c.at("state_dict").dump() + c.at("load_params").dump());
    ParamScheduler scheduler(LrSchedule(golden_params(c.at("load_params"))),
                             groups_of(c.value("param_groups", json::parse("[{}]"))),
                             mode_of(c.at("mode").get<std::string>()));
    if (const auto steps = optional_member<int64_t>(c, "steps_before_load")) scheduler.step(*steps);
    const SchedulerState state = parse_scheduler_state(c.at("state_dict").dump(), "golden");
    if (optional_member<std::string>(c, "rejected")) {
      EXPECT_THROW(scheduler.load(state), ConfigError);
      continue;
    }
    scheduler.load(state);
    expect_trace(scheduler, c);
    EXPECT_EQ(json::parse(to_json_text(scheduler.state())), c.at("state_after"));
  }
}

// An unknown name is refused before any schedule is made; the reference notices it when it is first used.
TEST(GoldenLrSchedule, lr_schedule_json_invalid) {
  for (const json& c : golden_list(lr_schedule_file(), "invalid")) {
    SCOPED_TRACE(c.dump());
    const json flags = c.value("flags", json::object());
    const auto make = [&] {
      const SchedulerLoad mode = scheduler_load(flags.value("override_opt_param_scheduler", false),
                                                flags.value("use_checkpoint_opt_param_scheduler", false));
      ParamScheduler scheduler(LrSchedule(golden_params(c.at("params"))), {RateGroup{}}, mode);
      if (c.contains("step")) scheduler.step(c.at("step").get<int64_t>());
    };
    EXPECT_THROW(make(), ConfigError);
  }
}

// The words of a launcher's command line.
std::vector<std::string> words_of(const json& args) {
  std::vector<std::string> words;
  const bool constant = args.at("weight_decay_incr_style") == "constant";
  for (const auto& [key, value] : args.items()) {
    if (value.is_null() || value == false || key == "data_parallel_size") continue;
    // Launcher arguments after validation: with a constant decay both ends stand for weight_decay.
    if (constant && key == "end_weight_decay") continue;
    const std::string name = constant && key == "start_weight_decay" ? "weight_decay" : key;
    if (value.is_array()) {
      words.push_back("--" + name);
      for (const json& item : value) words.push_back(item.dump());
      continue;
    }
    words.push_back("--" + name + "=" + (value.is_string() ? value.get<std::string>() : value.dump()));
  }
  return words;
}

TEST(GoldenLrSchedule, lr_schedule_json_from_args) {
  for (const json& c : golden_list(lr_schedule_file(), "from_args")) {
    SCOPED_TRACE(c.dump());
    const auto parsed = config::parse_arguments(config::Dialect::kPretrain, words_of(c.at("args")));
    config::validate(parsed.args, {.needs_inputs = false});
    const auto dp = c.at("args").value("data_parallel_size", 1);
    const layout::MicrobatchCalculator batches(config::batch_plan(parsed.args, dp));
    const RunSchedule run = run::make_schedule(parsed.args, batches);
    const ScheduleParams golden = golden_params(c.at("resolved"));
    EXPECT_EQ(run.schedule.params(), golden);
    EXPECT_EQ(run.unit, ScheduleUnit::kSamples);
    EXPECT_EQ(run.train_iters, c.at("train_iters").get<int64_t>());
  }
}

}  // namespace
}  // namespace megalith::optim
