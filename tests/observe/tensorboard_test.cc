#include "megalith/observe/tensorboard.h"

#include <gtest/gtest.h>

#include <cmath>

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

// Every second step, although no line is logged before the fourth; then the line adds what the steps do not have.
TEST(Tensorboard, PretrainHasMegatronsTagsAndInterval) {
  const TempFolder folder;
  SomeRun run;
  TensorboardCallback callback(folder.path(), {.style = ReportStyle::kMegatron, .log_interval = 2});
  run.begin(callback);
  for (int64_t step = 1; step <= 4; ++step) {
    run.state.global_step = step;
    run.tell(callback, &train::TrainerCallback::on_step_end,
             {{"loss", static_cast<double>(step)},
              {"grad_norm", 0.5},
              {"moe/z_loss_layer_1", 3},
              {"skipped_samples", 8},
              {"consumed_samples", 8.0 * static_cast<double>(step)}});
  }
  run.log(callback, {{"loss", 2.5}, {"skipped_iter", 1}, {"params_norm", 7}, {"consumed_samples", 32}});
  run.log(callback, {{"eval_loss", 2}});
  EXPECT_EQ(scalars_of(only_file(folder.path())), (Scalars{{"lm loss", 2, 2},
                                                           {"lm loss vs samples", 16, 2},
                                                           {"grad-norm", 2, 0.5F},
                                                           {"grad-norm vs samples", 16, 0.5F},
                                                           {"moe/z_loss_layer_1", 2, 3},
                                                           {"skipped-train-samples", 2, 8},
                                                           {"lm loss", 4, 4},
                                                           {"lm loss vs samples", 32, 4},
                                                           {"grad-norm", 4, 0.5F},
                                                           {"grad-norm vs samples", 32, 0.5F},
                                                           {"moe/z_loss_layer_1", 4, 3},
                                                           {"skipped-train-samples", 4, 8},
                                                           {"skipped_iter", 4, 1},
                                                           {"params-norm", 4, 7},
                                                           {"params-norm vs samples", 32, 7},
                                                           {"lm loss validation", 4, 2},
                                                           {"lm loss validation vs samples", 32, 2}}));
}

TEST(Tensorboard, NanStaysNan) {
  const TempFolder folder;
  SomeRun run;
  TensorboardCallback callback(folder.path(), {});
  run.begin(callback);
  run.log(callback, {{"loss", std::nan("")}, {"nan_iter", 3}});
  const Scalars scalars = scalars_of(only_file(folder.path()));
  ASSERT_EQ(scalars.size(), 2U);
  EXPECT_TRUE(std::isnan(scalars[0].value));
  EXPECT_EQ(scalars[1], (DecodedScalar{"train/nan_iter", 0, 3}));
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
