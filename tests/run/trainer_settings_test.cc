#include "megalith/run/resolve/trainer_settings.h"

#include <gtest/gtest.h>

#include "megalith/config/derive.h"
#include "megalith/config/parser.h"
#include "megalith/io/file_io.h"
#include "tests/support/temp_folder.h"

namespace megalith::run {
namespace {

using config::Dialect;
using config::TrainingArguments;

TrainingArguments arguments_of(const std::vector<std::string>& words, Dialect dialect = Dialect::kTrain) {
  return config::derive(config::parse_arguments(dialect, words).args).args;
}

train::TrainerSettings settings_of(const std::vector<std::string>& words, Dialect dialect = Dialect::kTrain) {
  return trainer_settings(arguments_of(words, dialect), {.world_size = 1});
}

TEST(TrainerSettings, GreaterIsBetterUnlessItIsALoss) {
  EXPECT_FALSE(settings_of({}).eval.tracks_best);
  EXPECT_EQ(settings_of({}).eval.best_metric.name, "eval_loss");
  EXPECT_FALSE(settings_of({}).eval.best_metric.greater);
  const auto accuracy = settings_of({"--metric_for_best_model=accuracy"}).eval;
  EXPECT_TRUE(accuracy.tracks_best);
  EXPECT_EQ(accuracy.best_metric.name, "eval_accuracy");
  EXPECT_TRUE(accuracy.best_metric.greater);
  EXPECT_FALSE(settings_of({"--metric_for_best_model=accuracy", "--greater_is_better=false"}).eval.best_metric.greater);
}

TEST(TrainerSettings, PretrainLogsAsMegatron) {
  EXPECT_FALSE(settings_of({}).log.first_step);
  const train::TrainerSettings settings = settings_of({}, Dialect::kPretrain);
  EXPECT_TRUE(settings.log.first_step);
  EXPECT_TRUE(settings.log.consumed_samples);
  EXPECT_TRUE(settings.log.loss_scale);
  EXPECT_TRUE(settings.resume.data_may_change);
  EXPECT_TRUE(settings.save.output_dir.empty()) << "nothing is written without --save";
}

TEST(TrainerSettings, SaveWhatIsAskedFor) {
  EXPECT_TRUE(settings_of({}).save.optimizer && settings_of({}).save.rng);
  const auto model_only = settings_of({"--save_only_model"}).save;
  EXPECT_FALSE(model_only.optimizer || model_only.rng);
  EXPECT_EQ(settings_of({}).save.arguments, report_settings(arguments_of({}), {.world_size = 1}).arguments);
}

TEST(TrainerSettings, ArgumentsReadBack) {
  const testing::TempFolder folder;
  const TrainingArguments args = arguments_of({"--logging_steps=7", "--bf16"});
  io::write_text_file(folder / "args.yaml", trainer_settings(args, {.world_size = 1}).save.arguments);
  EXPECT_EQ(arguments_of({(folder / "args.yaml").string()}), args);
}

TEST(ReportSettings, TensorboardFollowsTheOptions) {
  const auto folder = [](const std::vector<std::string>& words, Dialect dialect = Dialect::kTrain) {
    return report_settings(arguments_of(words, dialect), {.world_size = 1}).tensorboard_dir;
  };
  EXPECT_EQ(folder({}), "");
  for (const char* service : {"tensorboard", "wandb", "all"})
    EXPECT_EQ(folder({std::string("--report_to=") + service}), "trainer_output/tensorboard") << service;
  EXPECT_EQ(folder({"--report_to=tensorboard", "--logging_dir=runs/a"}), "runs/a");
  EXPECT_EQ(folder({"--report_to=tensorboard"}, Dialect::kPretrain), "") << "there is no output_dir";
}

TEST(ReportSettings, ProfiledStepsAreCountedFromOne) {
  EXPECT_EQ(report_settings(arguments_of({}), {.world_size = 1}).profile, std::nullopt);
  const auto args = arguments_of({"--profile", "--profile_step_start=1", "--profile_step_end=3"});
  EXPECT_EQ(report_settings(args, {.world_size = 1}).profile, (observe::TraceSteps{2, 3}));
}

}  // namespace
}  // namespace megalith::run
