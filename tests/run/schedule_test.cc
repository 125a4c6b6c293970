#include "megalith/run/resolve/schedule.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/config/derive.h"
#include "megalith/config/parser.h"
#include "megalith/config/validate.h"
#include "tests/support/expect.h"

namespace megalith::run {
namespace {

using config::Dialect;
using config::LrDecayStyle;
using optim::RateGroup;
using optim::RunSchedule;
using optim::ScheduleParams;
using optim::ScheduleUnit;
using testing::expect_contains;

config::TrainingArguments args_of(const std::vector<std::string>& words, Dialect dialect) {
  const auto parsed = config::parse_arguments(dialect, words);
  parsed.report.check_not_refused();
  config::validate(parsed.args, {.needs_inputs = false});
  return parsed.args;
}

RunSchedule schedule_of(const std::vector<std::string>& words, Dialect dialect = Dialect::kTrain) {
  const config::TrainingArguments args = args_of(words, dialect);
  return make_schedule(args, layout::MicrobatchCalculator(config::batch_plan(args, 1)));
}

ScheduleParams schedule_params(const std::vector<std::string>& words, Dialect dialect = Dialect::kTrain) {
  return schedule_of(words, dialect).schedule.params();
}

std::string refusal(const std::vector<std::string>& words, Dialect dialect = Dialect::kTrain) {
  try {
    schedule_of(words, dialect);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(MakeSchedule, the_adapters_defaults_count_steps) {
  const RunSchedule run = schedule_of({"--max_steps=200", "--weight_decay=0.1", "--global_batch_size=8"});
  ScheduleParams expected;
  expected.max_lr = 5e-5;
  expected.lr_decay_steps = expected.wd_incr_steps = 200;
  expected.start_wd = expected.end_wd = 0.1;
  EXPECT_EQ(run.schedule.params(), expected);
  EXPECT_EQ(run.unit, ScheduleUnit::kSteps);
  EXPECT_EQ(run.train_iters, 200);
  EXPECT_EQ(run.increment(64), 1);
}

TEST(MakeSchedule, megatron_counts_samples) {
  const RunSchedule run = schedule_of({"--train_iters=200", "--lr=1e-4", "--micro_batch_size=1",
                                       "--global_batch_size=8", "--lr_warmup_iters=10", "--lr_decay_iters=150"},
                                      Dialect::kPretrain);
  EXPECT_EQ(run.unit, ScheduleUnit::kSamples);
  EXPECT_EQ(run.schedule.params().lr_warmup_steps, 80);
  EXPECT_EQ(run.schedule.params().lr_decay_steps, 1200);
  EXPECT_EQ(run.schedule.params().wd_incr_steps, 1600);
  EXPECT_EQ(run.schedule.params().start_wd, 0.01);
  EXPECT_EQ(run.increment(64), 64);
}

TEST(MakeSchedule, both_units_draw_the_same_curve) {
  const std::vector<std::string> words{"--max_steps=60", "--lr=1e-3", "--lr_decay_style=cosine", "--lr_warmup_iters=7",
                                       "--global_batch_size=16"};
  const RunSchedule steps = schedule_of(words);
  const RunSchedule samples = schedule_of(words, Dialect::kPretrain);
  for (int64_t step = 0; step <= 62; ++step)
    EXPECT_NEAR(steps.schedule.lr(step), samples.schedule.lr(step * samples.increment(16)), 1e-17) << step;
}

TEST(MakeSchedule, the_caller_may_have_counted_epochs) {
  const config::TrainingArguments args = args_of({"--num_train_epochs=3", "--warmup_ratio=0.1"}, Dialect::kTrain);
  const RunSchedule run = make_schedule(args, layout::MicrobatchCalculator(config::batch_plan(args, 2)), 77);
  EXPECT_EQ(run.train_iters, 77);
  EXPECT_EQ(run.schedule.params().lr_decay_steps, 77);
  EXPECT_EQ(run.schedule.params().lr_warmup_steps, 8);
}

TEST(MakeSchedule, names_of_hugging_face_are_mapped_as_the_adapter_does) {
  const auto style = [](const std::string& name) {
    return schedule_params({"--max_steps=9", "--lr_scheduler_type=" + name,
                            R"(--lr_scheduler_kwargs={"wsd_decay_steps":3,"lr_wsd_decay_style":"cosine"})"})
        .lr_decay_style;
  };
  EXPECT_EQ(style("linear"), LrDecayStyle::kLinear);
  EXPECT_EQ(style("cosine"), LrDecayStyle::kCosine);
  EXPECT_EQ(style("constant"), LrDecayStyle::kConstant);
  EXPECT_EQ(style("constant_with_warmup"), LrDecayStyle::kConstant);
  EXPECT_EQ(style("inverse_sqrt"), LrDecayStyle::kInverseSquareRoot);
  EXPECT_EQ(style("cosine_with_min_lr"), LrDecayStyle::kCosine);
  EXPECT_EQ(style("cosine_warmup_with_min_lr"), LrDecayStyle::kCosine);
  EXPECT_EQ(style("warmup_stable_decay"), LrDecayStyle::kWsd);
}

TEST(MakeSchedule, schedulers_that_are_not_supported_say_what_to_use) {
  const auto refused = [](const std::string& name) {
    return refusal({"--max_steps=9", "--lr_scheduler_type=" + name});
  };
  expect_contains(refused("cosine_with_restarts"), "use cosine");
  expect_contains(refused("polynomial"), "use linear with min_lr");
  expect_contains(refused("reduce_lr_on_plateau"), "warmup_stable_decay");
  expect_contains(refused("greedy"), "warmup_stable_decay");
}

TEST(MakeSchedule, warm_up_in_every_way) {
  const auto warmup = [](const std::string& word, Dialect dialect = Dialect::kTrain) {
    return schedule_params({"--max_steps=100", "--lr=1e-3", "--micro_batch_size=1", "--global_batch_size=4", word},
                           dialect)
        .lr_warmup_steps;
  };
  EXPECT_EQ(warmup("--warmup_steps=7"), 7);
  EXPECT_EQ(warmup("--warmup_steps=0.07"), 8);  // transformers rounds 7.000000000000001 up, too
  EXPECT_EQ(warmup("--warmup_ratio=0.031"), 4);
  EXPECT_EQ(warmup("--lr_warmup_iters=7"), 7);
  EXPECT_EQ(warmup("--lr_warmup_iters=7", Dialect::kPretrain), 28);
  EXPECT_EQ(warmup("--warmup_steps=7", Dialect::kPretrain), 28);
  EXPECT_EQ(warmup("--lr_warmup_fraction=0.033", Dialect::kPretrain), 0.033 * 400);
  EXPECT_EQ(schedule_params({"--train_samples=400", "--lr_warmup_samples=30"}).lr_warmup_steps, 30);
}

TEST(MakeSchedule, kwargs_win_over_options) {
  const ScheduleParams params = schedule_params(
      {"--max_steps=100", "--learning_rate=1e-3", "--min_lr=1e-6", "--lr_scheduler_type=warmup_stable_decay",
       R"(--lr_scheduler_kwargs={"max_lr":2e-3,"min_lr_rate":0.1,"init_lr":1e-5,"lr_decay_steps":80,)"
       R"("num_decay_steps":20,"lr_wsd_decay_style":"minus_sqrt"})"});
  EXPECT_EQ(params.max_lr, 2e-3);
  EXPECT_EQ(params.min_lr, 2e-4);
  EXPECT_EQ(params.init_lr, 1e-5);
  EXPECT_EQ(params.lr_decay_steps, 80);
  EXPECT_EQ(params.wsd_decay_steps, 20);
  EXPECT_EQ(params.lr_wsd_decay_style, config::WsdDecayStyle::kMinusSqrt);
  EXPECT_EQ(params.wd_incr_steps, 100);
}

TEST(MakeSchedule, a_batch_that_grows_counts_with_its_final_size) {
  const std::vector<std::string> words{
      "--micro_batch_size=1", "--global_batch_size=32", "--rampup_batch_size", "8", "8", "800", "--lr=1e-3",
      "--train_samples=5000"};
  const RunSchedule run = schedule_of(words, Dialect::kPretrain);
  EXPECT_EQ(run.train_iters, 193);
  EXPECT_EQ(run.schedule.params().lr_decay_steps, 5000);
}

TEST(MakeSchedule, errors_name_the_option_that_was_written) {
  const std::string length = "--max_steps=10";
  expect_contains(refusal({}), "max_steps (train_iters) or train_samples");
  expect_contains(refusal({length}, Dialect::kPretrain), "lr is not given");
  expect_contains(refusal({length, "--warmup_steps=10"}), "warmup_steps is 10 steps");
  expect_contains(refusal({length, "--warmup_ratio=1"}), "warmup_ratio is 10 steps");
  expect_contains(refusal({length, "--lr_warmup_iters=12"}), "lr_warmup_iters is 12 steps");
  expect_contains(refusal({"--train_samples=64", "--lr_warmup_samples=99"}), "lr_warmup_samples is 99 samples");
  expect_contains(refusal({length, "--lr_warmup_fraction=1"}), "lr_warmup_fraction");
  expect_contains(refusal({length, "--warmup_ratio=0.1", "--lr_warmup_iters=2"}), "keep one");
  expect_contains(refusal({length, "--min_lr=1"}), "min_lr 1 is more than lr");
  expect_contains(refusal({length, "--lr_warmup_init=1"}), "lr_warmup_init is 1, more than learning_rate (lr)");
  expect_contains(refusal({length, "--lr_decay_style=WSD", "--lr_wsd_decay_iters=11"}),
                  "lr_wsd_decay_iters is 11 steps");
  expect_contains(refusal({"--max_steps=9000000000000000"}), "max_steps");
  expect_contains(refusal({"--train_samples=7", "--global_batch_size=8"}), "train_samples is 7, less than a step of 8");
  expect_contains(
      refusal({length, "--weight_decay_incr_style=linear", "--start_weight_decay=0.2", "--end_weight_decay=0.1"}),
      "end_weight_decay is 0.1, less than start_weight_decay 0.2");
}

TEST(MakeSchedule, bad_kwargs_are_named) {
  const auto refused = [](const std::string& kwargs) {
    return refusal({"--max_steps=10", "--lr_scheduler_kwargs=" + kwargs});
  };
  expect_contains(refused(R"({"min_lr":1})"), "min_lr of lr_scheduler_kwargs is 1, more than");
  expect_contains(refused(R"({"min_lr":-1})"), "min_lr of lr_scheduler_kwargs is -1");
  expect_contains(refused(R"({"min_lr_rate":2})"), "min_lr_rate of lr_scheduler_kwargs is 2");
  expect_contains(refused(R"({"min_lr":0,"min_lr_rate":0})"), "both min_lr and min_lr_rate");
  expect_contains(refused(R"({"lr_decay_steps":2.5})"), "lr_decay_steps of lr_scheduler_kwargs is 2.5");
  expect_contains(refused(R"({"wsd_decay_steps":2,"num_decay_steps":2})"), "both wsd_decay_steps and num_decay_steps");
  expect_contains(refused(R"({"lr_wsd_decay_style":"bogus"})"), "minus_sqrt");
}

TEST(MakeSchedule, decoupled_rates_are_a_group) {
  const auto groups_of = [](const std::vector<std::string>& words) {
    const config::TrainingArguments args = args_of(words, Dialect::kPretrain);
    const layout::MicrobatchCalculator batches(config::batch_plan(args, 1));
    return make_schedule(args, batches).groups;
  };
  const std::vector<std::string> words{"--train_iters=10", "--lr=1e-3", "--min_lr=1e-4"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), words.begin(), words.end());
    return more;
  };
  EXPECT_EQ(groups_of(words), std::vector<RateGroup>{{}});
  EXPECT_EQ(groups_of(with({"--decoupled_lr=2e-3"})), (std::vector<RateGroup>{{}, {.max_lr = 2e-3}}));
  EXPECT_EQ(groups_of(with({"--decoupled_lr=2e-3", "--decoupled_min_lr=1e-5"})),
            (std::vector<RateGroup>{{}, {.max_lr = 2e-3, .min_lr = 1e-5}}));
  EXPECT_THROW(groups_of(with({"--decoupled_lr=1e-5"})), ConfigError);
}

TEST(MakeSchedule, a_custom_function_applies_to_all_parameters) {
  const optim::RateFunctions rising{.lr = [](int64_t samples) { return static_cast<double>(samples); }};
  const std::vector<std::string> words{"--train_iters=10", "--lr=1e-3"};
  const RunSchedule named = schedule_of(words, Dialect::kPretrain);
  const RunSchedule own = named.with(rising);
  EXPECT_EQ(own.unit, ScheduleUnit::kSamples);
  EXPECT_EQ(own.schedule.params(), named.schedule.params());
  EXPECT_EQ(own.schedule.lr(3), 3);
  EXPECT_EQ(own.schedule.weight_decay(3), named.schedule.weight_decay(3));
  const RunSchedule decoupled =
      schedule_of({"--train_iters=10", "--lr=1e-3", "--decoupled_lr=2e-3"}, Dialect::kPretrain);
  EXPECT_EQ(decoupled.with({}).groups, decoupled.groups) << "named curves";
  expect_contains(testing::error_of<ConfigError>([&] { decoupled.with(rising); }),
                  "decoupled_lr is 0.002, and this program gives the learning rate as one function");
}

}  // namespace
}  // namespace megalith::run
