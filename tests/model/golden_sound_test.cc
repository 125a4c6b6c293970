// The audio tower of the golden model that hears against the rows that transformers computes, and how config.json
// describes such towers. The whole model is compared in golden_sight_test.cc.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/hf/weight_files.h"
#include "megalith/io/json_reader.h"
#include "megalith/model/audio_part.h"
#include "megalith/model/families/audio.h"
#include "megalith/nn/audio/audio_tower.h"
#include "tests/model/model_support.h"
#include "tests/model/tower_files.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/golden_media.h"
#include "tests/support/seeing_model.h"

namespace megalith::testing {
namespace {

std::vector<std::string> hearing_models() {
  std::vector<std::string> names = golden_media_names();
  std::erase_if(names, [](const std::string& name) { return golden_model_type(name) != "qwen3_omni_moe"; });
  return names;
}

class GoldenAudioTower : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenAudioTower, rows_of_sounds) {
  const GoldenMedia golden = read_golden_media(GetParam());  // skips if there is no folder
  const model::ModelConfig config = model::read_model_config(golden.folder);
  ASSERT_TRUE(config.audio.has_value());
  run_ranks(1, [&](const Rank& r) {
    nn::ParameterSet set(at::kFloat, at::kCPU);
    const nn::AudioTower tower(nn::ParameterScope(set).child("audio"), *config.audio, {.group = r.world.world()});
    const std::string& prefix = config.form.audio_prefix;
    load_tower(set, model::audio_rules(*config.audio, prefix), prefix, hf::WeightFiles(golden.folder));
    const at::NoGradGuard no_grad;
    for (const GoldenMediaBatch* batch : {&golden.main, &golden.mixed}) {
      const GoldenPixels media = golden_pixels(*batch, {0, 1, 2}, golden.settings.merge);
      expect_close(tower.forward(media.audio_features, nn::audio_lengths(media.audio_lengths)), batch->audio_embeds,
                   "rows");
    }
  });
}

// Both spellings of config.json describe the same tower.
TEST_P(GoldenAudioTower, classic_config) {
  const auto folder = golden_folder(GetParam());
  const auto classic = folder / "config_classic.json";
  if (!std::filesystem::exists(classic)) return;
  EXPECT_EQ(model::read_model_config(folder).audio, model::read_model_config(io::read_json_file(classic)).audio);
}

INSTANTIATE_TEST_SUITE_P(hf, GoldenAudioTower, ::testing::ValuesIn(golden_or_none(hearing_models())),
                         golden_test_name<::testing::TestParamInfo<std::string>>);

nn::AudioShape read_text(const std::string& text) {
  return model::read_audio(io::parse_json_file(text, "config.json").fields());
}

// The audio_config of published files.
TEST(ReadAudio, PublishedFiles) {
  const nn::AudioShape shape = read_text(R"({"activation_function": "gelu", "conv_chunksize": 500, "d_model": 1280,
      "downsample_hidden_size": 480, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "encoder_layers": 32,
      "initializer_range": 0.02, "max_source_positions": 1500, "n_window": 50, "n_window_infer": 800,
      "num_mel_bins": 128, "output_dim": 2048})");
  EXPECT_EQ(shape, (nn::AudioShape{.depth = 32,
                                   .width = 1280,
                                   .heads = 20,
                                   .mlp_width = 5120,
                                   .out_width = 2048,
                                   .mel_bins = 128,
                                   .conv_channels = 480,
                                   .chunk = 100,
                                   .window = 800,
                                   .conv_chunks = 500}));
}

TEST(ReadAudio, ProblemsNameTheField) {
  expect_error<DataError>([] { read_text(R"({"encoder_layers": 2})"); }, {"d_model"});
  expect_error<ConfigError>(
      [] {
        read_text(R"({"activation_function": "gelu", "d_model": 16, "downsample_hidden_size": 4, "encoder_layers": 2,
            "encoder_attention_heads": 3, "encoder_ffn_dim": 8, "n_window": 50, "n_window_infer": 800,
            "num_mel_bins": 16, "output_dim": 8})");
      },
      {"config.json", "3 heads and a width of 16"});
}

TEST(HearingModel, ProblemsAndDifferences) {
  model::ModelConfig config = seeing_model({});
  config.vision.reset();
  config.audio = nn::AudioShape{.depth = 1,
                                .width = 8,
                                .heads = 2,
                                .mlp_width = 8,
                                .out_width = kSeeingWidth,
                                .mel_bins = 16,
                                .conv_channels = 4};
  EXPECT_TRUE(model::problems(config).empty());
  model::ModelConfig other = config;
  other.audio->conv_chunks = 7;
  other.audio->init_std = 1;
  EXPECT_TRUE(model::differences(config, other).empty());
  other.audio->window = 400;
  EXPECT_EQ(model::differences(config, other), std::vector<std::string>{"audio tower"});
  other.audio->out_width = 8;
  ASSERT_EQ(model::problems(other).size(), 1U);
  expect_contains(model::problems(other)[0], "8 columns, but the model has a width of 16");
  EXPECT_FALSE(model::without_towers(config).audio.has_value());
}

// Frozen as LLaMA-Factory freezes: the products at the end are the projector, all before them the tower.
TEST(HearingModel, PartsToFreeze) {
  const model::FreezePlan tower{.vision_tower = true}, projector{.projector = true}, text{.language_model = true};
  for (const char* name : {"audio.conv1.weight", "audio.blocks.0.mlp.up.bias", "audio.projector.norm.weight"}) {
    EXPECT_TRUE(tower.freezes(name)) << name;
    EXPECT_FALSE(projector.freezes(name)) << name;
    EXPECT_FALSE(text.freezes(name)) << name;
  }
  for (const char* name : {"audio.projector.up.weight", "audio.projector.down.bias"}) {
    EXPECT_FALSE(tower.freezes(name)) << name;
    EXPECT_TRUE(projector.freezes(name)) << name;
    EXPECT_FALSE(text.freezes(name)) << name;
  }
}

TEST(HearingModel, SoundsNeedATower) {
  run_ranks(1, [](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 1}));
    model::ModelConfig config = seeing_model({});
    config.vision.reset();
    const model::GptModel whole(config, {}, model::ChunkPlace::whole(config), context);
    whole.initialize_parameters(1);
    model::ModelInput input{.layout = ops::SequenceLayout::dense(1, 8), .ids = at::zeros({8}, at::kLong)};
    input.audio_features = at::zeros({100, 16});
    input.audio_lengths = at::tensor({100}, at::kLong);
    input.audio_rows = at::full({8}, -1, at::kLong);
    expect_error<ConfigError>([&] { whole.forward(input); }, {"no audio tower", "a model that hears"});
  });
}

}  // namespace
}  // namespace megalith::testing
