#include "megalith/observe/tensorboard.h"

#include <gtest/gtest.h>

#include "tests/observe/decoded_events.h"
#include "tests/observe/some_run.h"
#include "tests/support/expect.h"

namespace megalith::observe {
namespace {

using testing::expect_contains;
using testing::TempFolder;
using Scalars = std::vector<DecodedScalar>;

std::string only_file(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  EXPECT_EQ(files.size(), 1U);
  return text_of_file(files.at(0));
}

TEST(Tensorboard, TagsOfBothStyles) {
  EXPECT_EQ(tensorboard_tag(ReportStyle::kHuggingFace, "loss"), "train/loss");
  EXPECT_EQ(tensorboard_tag(ReportStyle::kHuggingFace, "eval_loss"), "eval/loss");
  EXPECT_EQ(tensorboard_tag(ReportStyle::kHuggingFace, "test_loss"), "test/loss");
  EXPECT_EQ(tensorboard_tag(ReportStyle::kHuggingFace, "evaluations"), "train/evaluations");
  EXPECT_EQ(tensorboard_tag(ReportStyle::kMegatron, "loss"), "lm loss");
  EXPECT_EQ(tensorboard_tag(ReportStyle::kMegatron, "learning_rate"), "learning-rate");
  EXPECT_EQ(tensorboard_tag(ReportStyle::kMegatron, "eval_perplexity"), "lm loss validation ppl");
  EXPECT_EQ(tensorboard_tag(ReportStyle::kMegatron, "z_loss"), "z_loss");
}

TEST(Tensorboard, ArgumentsAndLines) {
  const TempFolder folder;
  SomeRun run;
  const std::string yaml = "a: 1\nb: 2\n";
  TensorboardCallback callback(folder / "tensorboard", {.arguments = yaml});
  run.begin(callback);
  run.state.global_step = 10;
  run.log(callback, {{"loss", 2.5}, {"learning_rate", 0.5}});
  run.log(callback, {{"eval_loss", 2.25}});
  const std::string file = only_file(folder / "tensorboard");
  EXPECT_EQ(scalars_of(file),
            (Scalars{{"train/loss", 10, 2.5F}, {"train/learning_rate", 10, 0.5F}, {"eval/loss", 10, 2.25F}}));
  const DecodedMessage text = DecodedMessage(records_of(file).at(1)).message(5).message(1);
  expect_contains(text.message(8).bytes.at(8), "    " + yaml.substr(0, yaml.find('\n')) + "\n    ");
}

TEST(Tensorboard, PretrainHasMegatronsTagsAndInterval) {
  const TempFolder folder;
  SomeRun run;
  TensorboardCallback callback(folder.path(), {.style = ReportStyle::kMegatron, .log_interval = 2});
  run.begin(callback);
  for (run.state.global_step = 1; run.state.global_step <= 2; ++run.state.global_step)
    run.log(callback, {{"loss", 2.5}, {"consumed_samples", 8.0 * static_cast<double>(run.state.global_step)}});
  run.state.global_step = 3;
  run.log(callback, {{"eval_loss", 2}});
  EXPECT_EQ(scalars_of(only_file(folder.path())),
            (Scalars{{"lm loss", 2, 2.5F}, {"lm loss vs samples", 16, 2.5F}, {"lm loss validation", 3, 2}}));
}

TEST(Tensorboard, AResumedRunPurgesAndOtherRanksAreSilent) {
  const TempFolder folder;
  SomeRun run;
  run.state.global_step = 20;
  TensorboardCallback callback(folder / "a", {});
  run.begin(callback);
  EXPECT_EQ(DecodedMessage(records_of(only_file(folder / "a")).at(1)).numbers.at(2), 21U);
  run.state.is_world_process_zero = false;
  TensorboardCallback other(folder / "b", {});
  run.begin(other);
  run.log(other, {{"loss", 1}});
  EXPECT_FALSE(std::filesystem::exists(folder / "b"));
}

TEST(Tensorboard, SyncCommandNamesTheFolder) { EXPECT_EQ(wandb_sync_command("out/tb"), "wandb sync out/tb"); }

}  // namespace
}  // namespace megalith::observe
