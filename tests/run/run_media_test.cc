// Whether a run needs towers, and options about them that have nothing to act on.
#include "megalith/run/media/run_media.h"

#include <gtest/gtest.h>

#include <fstream>

#include "megalith/base/error.h"
#include "megalith/config/media_config.h"
#include "megalith/media/sound_processor.h"
#include "megalith/model/families/family.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

namespace megalith::run {
namespace {

class RunMedia : public ::testing::Test {
 protected:
  RunMedia() {
    std::ofstream(folder_ / "dataset_info.json")
        << R"({"seen": {"file_name": "a.jsonl", "columns": {"prompt": "q", "response": "a", "images": "images"}},)"
        << R"( "heard": {"file_name": "a.jsonl", "columns": {"prompt": "q", "response": "a", "audios": "sounds"}},)"
        << R"( "moving": {"file_name": "a.jsonl", "columns": {"prompt": "q", "response": "a", "videos": "clips"}},)"
        << R"( "read": {"file_name": "a.jsonl"}})";
    std::ofstream(folder_ / "a.jsonl") << R"({"instruction": "q", "output": "a"})"
                                       << "\n";
    args_.data.dataset_dir = folder_.path().string();
  }
  model::TowerChoice towers_of(std::vector<std::string> train, std::vector<std::string> eval = {}) {
    args_.data.dataset = std::move(train);
    args_.data.eval_dataset = std::move(eval);
    return towers_for(args_);
  }
  static model::ModelConfig model_of(const std::string& family) {
    return model::read_model_config(testing::golden_dir() / "hf" / family);
  }

  testing::TempFolder folder_;
  config::TrainingArguments args_;
};

constexpr model::TowerChoice kNone{.vision = false, .audio = false}, kSees{.audio = false}, kHears{.vision = false};

TEST_F(RunMedia, ColumnsOfAnyDatasetTell) {
  EXPECT_EQ(towers_of({"seen"}), kSees);
  EXPECT_EQ(towers_of({"read", "moving"}), kSees);
  EXPECT_EQ(towers_of({"read"}, {"seen"}), kSees);
  EXPECT_EQ(towers_of({"read"}), kNone);
  EXPECT_EQ(towers_of({"read", "heard"}), kHears);
  EXPECT_EQ(towers_of({"seen"}, {"heard"}), model::TowerChoice{});
  args_.media.use_audio_in_video = true;
  EXPECT_EQ(towers_of({"moving"}), model::TowerChoice{});
}

TEST_F(RunMedia, OptionsWithoutEffectAreRefused) {
  const model::ModelConfig sees = model_of("qwen2_5_vl"), reads = model_of("qwen2"), hears = model_of("qwen3_omni_moe");
  EXPECT_TRUE(args_.towers == config::TowerConfig{});
  check_towers(args_, sees, kSees);
  check_towers(args_, sees, kNone);
  check_towers(args_, reads, kNone);
  check_towers(args_, hears, {});
  testing::expect_error<ConfigError>([&] { check_towers(args_, reads, kSees); }, {"qwen2 models have no vision tower"});
  testing::expect_error<ConfigError>([&] { check_towers(args_, sees, kHears); },
                                     {"qwen2_5_vl models have no audio tower"});
  args_.towers.freeze_language_model = true;
  testing::expect_error<ConfigError>([&] { check_towers(args_, sees, kNone); },
                                     {"freeze_language_model has nothing to train", "no dataset has images"});
  args_.towers = {.freeze_multi_modal_projector = false};
  testing::expect_error<ConfigError>([&] { check_towers(args_, reads, kNone); },
                                     {"freeze_multi_modal_projector false", "qwen2 models have no vision tower"});
  check_towers(args_, hears, kHears);
  args_.media.use_audio_in_video = true;
  testing::expect_error<ConfigError>([&] { check_towers(args_, sees, kSees); }, {"use_audio_in_video is for models"});
  testing::expect_error<ConfigError>([&] { check_towers(args_, hears, kHears); },
                                     {"no dataset has a column of videos"});
}

// Only the processors of towers that the run keeps are read.
TEST_F(RunMedia, ModelsThatOnlyHearNeedNoImages) {
  const model::ModelConfig hears = model::with_towers(model_of("qwen3_omni_moe"), kHears);
  const data::MediaSettings settings = media_settings(args_, folder_.path(), hears, std::nullopt);
  EXPECT_FALSE(settings.images || settings.videos);
  ASSERT_TRUE(settings.sounds);
  EXPECT_EQ(settings.sounds->row_width(), 16);
  EXPECT_EQ(settings.positions.positions_per_second, 13);
  std::ofstream(folder_ / "preprocessor_config.json") << R"({"feature_size": 128})";
  testing::expect_error<DataError>([&] { media_settings(args_, folder_.path(), hears, std::nullopt); },
                                   {"feature_size"});
}

TEST_F(RunMedia, FilesOfAnotherModelAreRefused) {
  const model::ModelConfig sees = model_of("qwen2_5_vl");
  testing::expect_error<DataError>([&] { media_settings(args_, folder_.path(), sees, std::nullopt); },
                                   {"preprocessor_config.json"});
  std::ofstream(folder_ / "preprocessor_config.json")
      << R"({"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2})";
  testing::expect_error<ConfigError>([&] { media_settings(args_, folder_.path(), sees, std::nullopt); },
                                     {"cuts patches of 14 x 14 pixels", "takes 4 x 4"});
  std::ofstream(folder_ / "preprocessor_config.json")
      << R"({"patch_size": 4, "temporal_patch_size": 2, "merge_size": 2})";
  args_.media.video_fps = 3;
  const data::MediaSettings settings = media_settings(args_, folder_.path(), sees, std::nullopt);
  EXPECT_TRUE(settings.images && settings.videos);
  EXPECT_EQ(settings.media_dir, folder_.path());
  EXPECT_EQ(settings.video_fps, 3);
  EXPECT_FALSE(settings.video_blocks);
}

}  // namespace
}  // namespace megalith::run
