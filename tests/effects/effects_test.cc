#include "tests/effects/effect.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>

#include "megalith/config/option_table.h"
#include "megalith/config/parser.h"

namespace megalith::testing {
namespace {

using config::OptionStatus;
using config::OptionTable;

config::TrainingArguments arguments(const Effect& effect, const Words& more) {
  Words words = effect.base;
  words.insert(words.end(), more.begin(), more.end());
  return config::parse_arguments(effect.dialect, words).args;
}

void check_effects(const Effects& effects) {
  ASSERT_FALSE(effects.empty());
  for (const Effect& effect : effects) {
    SCOPED_TRACE(effect.option);
    try {
      const std::string without = effect.observe(arguments(effect, effect.without));
      const std::string with = effect.observe(arguments(effect, effect.with));
      EXPECT_NE(without, with) << "the option changes nothing";
      EXPECT_EQ(without, effect.observe(arguments(effect, effect.without))) << "what is looked at changes by itself";
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(Effects, OfTheLayout) { check_effects(layout_effects()); }
TEST(Effects, OnTheModel) { check_effects(model_effects()); }
TEST(Effects, OnExperts) { check_effects(moe_effects()); }
TEST(Effects, OnTheVocabulary) { check_effects(vocabulary_effects()); }
TEST(Effects, OnProductsInFp8) { check_effects(fp8_effects()); }
TEST(Effects, OnModelsFromScratch) { check_effects(scratch_effects()); }
TEST(Effects, OnTheOptimizer) { check_effects(optimizer_effects()); }
TEST(Effects, OnTheSchedule) { check_effects(schedule_effects()); }
TEST(Effects, OnTheData) { check_effects(data_effects()); }
TEST(Effects, OnIndexedData) { check_effects(indexed_effects()); }
TEST(Effects, OnTheFlow) { check_effects(flow_effects()); }
TEST(Effects, OnWhatIsShown) { check_effects(show_effects()); }
TEST(Effects, OnTraining) { check_effects(training_effects()); }
TEST(Effects, OnPretraining) { check_effects(pretrain_effects()); }
TEST(Effects, OnCheckpoints) { check_effects(checkpoint_effects()); }
TEST(Effects, OnLocalCheckpoints) { check_effects(local_save_effects()); }
TEST(Effects, OnTheCommand) { check_effects(command_effects()); }
TEST(Effects, OnFaults) { check_effects(fault_effects()); }
TEST(Effects, OnAdapters) { check_effects(lora_effects()); }
TEST(Effects, OnPreferences) { check_effects(preference_effects()); }
TEST(Effects, OnScores) { check_effects(scoring_effects()); }
TEST(Effects, OnDistillation) { check_effects(teacher_effects()); }
TEST(Effects, OnRecords) { check_effects(record_effects()); }

// A test that has moved or is gone shows nothing.
TEST(Effects, TestsElsewhereExist) {
  for (const ShownElsewhere& shown : effects_shown_elsewhere()) {
    std::ifstream in(shown.file);
    const std::string source{std::istreambuf_iterator<char>(in), {}};
    EXPECT_NE(source.find(std::string("(") + shown.test + ")"), std::string::npos)
        << shown.option << ": " << shown.file << " has no " << shown.test;
  }
}

TEST(Effects, EveryImplementedOptionHasARow) {
  std::set<std::string> shown;
  for (const ShownElsewhere& elsewhere : effects_shown_elsewhere()) shown.insert(elsewhere.option);
  for (const Effect& effect : all_effects()) {
    EXPECT_TRUE(shown.insert(effect.option).second) << effect.option << " has two rows";
    const auto match = OptionTable::instance().find(effect.option);
    ASSERT_TRUE(match) << effect.option;
    EXPECT_EQ(match->option->status, OptionStatus::kImplemented) << effect.option;
  }
  for (const config::Option& option : OptionTable::instance().options()) {
    if (option.status == OptionStatus::kImplemented) {
      EXPECT_TRUE(shown.contains(option.name)) << option.name << " is called implemented; show its effect";
    }
  }
}

}  // namespace

std::vector<ShownElsewhere> effects_shown_elsewhere() {
  return {
      // A graph needs a GPU; before that, nothing is recorded.
      {"cuda_graph_warmup_steps", "tests/cuda/program_test.cc", "OnCuda, GraphsAreRecordedAfterTheWarmUp"},
      // An update beside a forward pass needs a GPU's streams.
      {"overlap_optimizer_with_forward", "tests/train/overlap_update_test.cc", "OverlapUpdateUse, OptionsDecide"},
      // The command itself: the work that it does, the files that it leaves, ranks that wait for one another.
      {"do_train", "tests/cli/option_runs_test.cc", "OptionRuns, DoTrainAndDoEvalChooseTheWork"},
      {"do_eval", "tests/cli/option_runs_test.cc", "OptionRuns, DoTrainAndDoEvalChooseTheWork"},
      {"report_to", "tests/cli/option_runs_test.cc", "OptionRuns, ReportToAndLoggingDirPlaceTensorBoardsFiles"},
      {"logging_dir", "tests/cli/option_runs_test.cc", "OptionRuns, ReportToAndLoggingDirPlaceTensorBoardsFiles"},
      {"ddp_timeout", "tests/cli/option_runs_test.cc", "OptionRuns, TimeoutsDecideHowLongARankMayBeLate"},
      {"distributed_timeout_minutes", "tests/cli/option_runs_test.cc",
       "OptionRuns, TimeoutsDecideHowLongARankMayBeLate"},
      // Files of images, read by the program.
      {"freeze_vision_tower", "tests/cli/sight_command_test.cc", "SightCommand, FreezesThePartsThatOptionsName"},
      {"freeze_multi_modal_projector", "tests/cli/sight_command_test.cc",
       "SightCommand, FreezesThePartsThatOptionsName"},
      {"freeze_language_model", "tests/cli/sight_command_test.cc", "SightCommand, FreezesThePartsThatOptionsName"},
      {"vit_lr", "tests/cli/sight_command_test.cc", "SightCommand, FreezesThePartsThatOptionsName"},
      {"aligner_lr", "tests/cli/sight_command_test.cc", "SightCommand, FreezesThePartsThatOptionsName"},
      {"image_max_pixels", "tests/cli/sight_command_test.cc", "SightCommand, LimitsOfPixelsDecideTokens"},
      {"image_min_pixels", "tests/cli/sight_command_test.cc", "SightCommand, LimitsOfPixelsDecideTokens"},
      {"video_max_pixels", "tests/cli/sight_command_test.cc", "SightCommand, LimitsOfVideosDecideTokensAndPositions"},
      {"video_min_pixels", "tests/cli/sight_command_test.cc", "SightCommand, LimitsOfVideosDecideTokensAndPositions"},
      {"video_maxlen", "tests/cli/sight_command_test.cc", "SightCommand, FramesOfVideoFilesAreLimited"},
      {"video_fps", "tests/cli/sight_command_test.cc", "SightCommand, LimitsOfVideosDecideTokensAndPositions"},
      {"use_audio_in_video", "tests/cli/sound_command_test.cc", "SoundCommand, VideosAreReadWithTheirSound"},
      {"media_dir", "tests/cli/sight_command_test.cc", "SightCommand, BadMediaAreNamedOrCounted"},
      {"verify_media", "tests/cli/sight_command_test.cc", "SightCommand, DamageIsNamedBeforeTraining"},
      {"skip_broken_media", "tests/cli/sight_command_test.cc", "SightCommand, BadMediaAreNamedOrCounted"},
      // Ranks that are processes, one of which fails.
      {"inprocess_restart", "tests/faults/recovery_test.cc", "InProcessRestart, AnExceptionOnOneRankLosesNoStep"},
  };
}

}  // namespace megalith::testing
