// Scoring with images and videos: the golden numbers of whole models that see, in every layout, and input that does not
// fit together.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/hf/safetensors_file.h"
#include "megalith/inference/media_batch.h"
#include "megalith/inference/score.h"
#include "tests/inference/media_layouts.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

// A batch of a golden file, "" or "mixed.", and the numbers that belong to it.
struct GoldenScores {
  inference::ScoreBatch batch;
  at::Tensor position_ids, logits, token_losses;
  double loss = 0;
};
GoldenScores read_scores(const std::string& name, const std::string& prefix) {
  const hf::SafetensorsFile file(golden_folder(name) / "golden.safetensors");
  const auto get = [&](const std::string& tensor) {
    return file.find(prefix + tensor) ? file.tensor(prefix + tensor) : at::Tensor();
  };
  GoldenScores scores{.batch = {get("input_ids"), get("attention_mask"), get("labels")},
                      .position_ids = get("position_ids"),
                      .logits = get("logits"),
                      .token_losses = get("token_losses")};
  scores.batch.media = {.pixels = get("pixel_values"),
                        .grids = get("image_grid_thw"),
                        .video_pixels = get("pixel_values_videos"),
                        .video_grids = get("video_grid_thw"),
                        .video_seconds = get("second_per_grid_ts"),
                        .sounds = get("input_features"),
                        .sound_lengths = get("audio_feature_lengths")};
  const at::Tensor labeled = scores.batch.labels.narrow(1, 1, scores.batch.labels.size(1) - 1).ne(-100);
  scores.loss = (scores.token_losses.sum(at::kDouble) / labeled.sum()).item<double>();
  return scores;
}

class ScoreMedia : public ::testing::TestWithParam<std::string> {};

TEST_P(ScoreMedia, FileHoldsTheGoldenNumbersInEveryLayout) {
  for (const std::string prefix : {"", "mixed."}) {
    const GoldenScores golden = read_scores(GetParam(), prefix);
    for (const MediaLayout& how : media_layouts_of(GetParam())) {
      SCOPED_TRACE(prefix + how.name());
      const TempFolder temp;
      run_media_model(GetParam(), how, [&](const Rank&, model::VirtualModels& models) {
        const auto total = inference::score_to_file(models, golden.batch, temp / "out", {.rows = 2, .logits = true});
        expect_close(total.loss, golden.loss, "loss");
      });
      const hf::SafetensorsFile file(temp / "out");
      const double tolerance = GetParam().starts_with("qwen3_5") ? 2 * kClose : kClose;
      expect_close(file.tensor("token_losses"), golden.token_losses, "token losses", tolerance);
      // The golden logits are those of the first row without its padding.
      const at::Tensor logits = file.tensor("logits")[0].narrow(0, 0, golden.logits.size(0));
      expect_close(logits, golden.logits, "logits", 2 * tolerance);
    }
  }
}

// Positions of the file take the place of computed ones.
TEST_P(ScoreMedia, GivenPositionsCount) {
  GoldenScores golden = read_scores(GetParam(), "mixed.");
  run_media_model(GetParam(), {}, [&](const Rank&, model::VirtualModels& models) {
    inference::ScoreBatch batch = golden.batch;
    batch.media.coordinates = golden.position_ids;
    expect_close(inference::score_rows(models, batch, false).token_losses, golden.token_losses, "token losses",
                 2 * kClose);
    batch.media.coordinates = golden.position_ids.mul(3);
    const at::Tensor other = inference::score_rows(models, batch, false).token_losses;
    EXPECT_GT((other - golden.token_losses).abs().max().item<double>(), 1e-3);
  });
}

// A row is the same wherever it stands: among others, alone, and after padding.
TEST_P(ScoreMedia, RowsAndPaddingDoNotMatter) {
  const GoldenScores golden = read_scores(GetParam(), "mixed.");
  const inference::ScoreBatch& batch = golden.batch;
  const auto moved = [&](const at::Tensor& t, int64_t fill) {
    return at::cat({at::full({t.size(0), 3}, fill, at::kLong), t}, 1);
  };
  inference::ScoreBatch left{moved(batch.input_ids, 0), moved(batch.attention_mask, 0), moved(batch.labels, -100),
                             batch.media};
  const TempFolder temp;
  run_media_model(GetParam(), {}, [&](const Rank&, model::VirtualModels& models) {
    inference::score_to_file(models, left, temp / "out", {.rows = 1});
  });
  const at::Tensor losses = hf::SafetensorsFile(temp / "out").tensor("token_losses");
  expect_close(losses.narrow(1, 3, batch.labels.size(1)), golden.token_losses, "token losses", 2 * kClose);
  EXPECT_EQ(losses.narrow(1, 0, 3).abs().sum().item<double>(), 0);
}

// Sounds are said where they do not fit.
TEST(ScoreSounds, MistakesAreNamed) {
  const GoldenScores golden = read_scores("qwen3_omni_moe", "");
  const model::ModelConfig config = model::read_model_config(golden_folder("qwen3_omni_moe"));
  const auto refused = [&](const std::function<void(inference::MediaInput&)>& change, const std::string& part,
                           const model::ModelConfig& of) {
    inference::MediaInput media = golden.batch.media;
    change(media);
    try {
      inference::place_media(golden.batch.input_ids, golden.batch.attention_mask, media, of);
      ADD_FAILURE() << "nothing was refused: " << part;
    } catch (const Error& error) {
      expect_contains(error.what(), part);
    }
  };
  using Input = inference::MediaInput;
  refused([](Input& media) { media.sound_lengths = media.sound_lengths.add(8); }, "sound 0 has", config);
  refused([](Input& media) { media.sound_lengths = media.sound_lengths.sub(16); }, "which are", config);
  refused([](Input& media) { media.sound_lengths = at::Tensor(); }, "belong together", config);
  refused([](Input& media) { media.sounds = media.sounds.narrow(1, 0, 8); }, "bands of each sound", config);
  refused(
      [](Input& media) {
        media.sounds = media.sounds.narrow(0, 0, 1);
        media.sound_lengths = media.sound_lengths.narrow(0, 0, 1);
      },
      "has only 1", config);
  refused(
      [](Input& media) {
        media.sounds = at::cat({media.sounds, media.sounds});
        media.sound_lengths = at::cat({media.sound_lengths, media.sound_lengths});
      },
      "placeholders for 2 of the 4 sounds", config);
  refused([](Input&) {}, "have no audio tower here", model::with_towers(config, {.audio = false}));
}

// Text needs no tower, and scores in layouts that the tower does not allow.
TEST_P(ScoreMedia, TextAloneNeedsNoTower) {
  const GoldenScores golden = read_scores(GetParam(), "mixed.");
  if (golden.batch.media.hears()) return;                                  // the row without pictures has a sound
  const auto row = [](const at::Tensor& t) { return t.narrow(0, 1, 1); };  // the row of text
  const inference::ScoreBatch text{row(golden.batch.input_ids), row(golden.batch.attention_mask),
                                   row(golden.batch.labels)};
  for (const MediaLayout& how : {MediaLayout{}, MediaLayout{.pp = 2}}) {
    const TempFolder temp;
    run_media_model(
        GetParam(), how,
        [&](const Rank&, model::VirtualModels& models) { inference::score_to_file(models, text, temp / "out", {}); },
        /*towers=*/false);
    expect_close(hf::SafetensorsFile(temp / "out").tensor("token_losses"), row(golden.token_losses), "token losses",
                 2 * kClose);
  }
}

INSTANTIATE_TEST_SUITE_P(, ScoreMedia, ::testing::ValuesIn(golden_or_none(supported_media_models())),
                         golden_test_name<::testing::TestParamInfo<std::string>>);

// Every disagreement is named with both counts.
class BadMedia : public ::testing::Test {
 protected:
  void SetUp() override {
    batch_ = read_scores("qwen2_5_vl", "mixed.").batch;
    config_ = model::read_model_config(golden_folder("qwen2_5_vl"));
  }
  std::string error(const inference::MediaInput& media) { return error(batch_.input_ids, media, config_); }
  static std::string error(const at::Tensor& ids, const inference::MediaInput& media,
                           const model::ModelConfig& config) {
    try {
      inference::place_media(ids, {}, media, config);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }

  static at::Tensor ids(const std::vector<int64_t>& row) { return at::tensor(row, at::kLong).unsqueeze(0); }

  inference::ScoreBatch batch_;
  model::ModelConfig config_;
};

TEST_F(BadMedia, IsNamedWithItsRowAndCounts) {
  const inference::MediaInput good = batch_.media;
  EXPECT_EQ(error(good), "");
  inference::MediaInput media = good;
  media.grids = good.grids.flip(0);
  expect_contains(error(media), "row 0 has a run of ");
  expect_contains(error(media), "Give ids and pixels that were made together");
  media = good;
  media.grids = good.grids.narrow(0, 0, 1);
  expect_contains(error(media), "pixel_values has the shape");
  media.pixels = good.pixels.narrow(0, 0, good.grids[0].prod().item<int64_t>());
  expect_contains(error(media), "but image_grid_thw has only 1, which are all used before it");
  media = good;
  media.grids = at::cat({good.grids, good.grids.narrow(0, 0, 1)});
  media.pixels = at::cat({good.pixels, good.pixels.narrow(0, 0, good.grids[0].prod().item<int64_t>())});
  expect_contains(error(media), "the rows have placeholders for 2 of the 3 images in image_grid_thw");
  media = good;
  media.pixels = at::Tensor();
  expect_contains(error(media), "but only image_grid_thw is given");
  media = good;
  media.video_seconds = at::ones({5});
  expect_contains(error(media), "second_per_grid_ts has 5 numbers for 2 videos");
  media = good;
  media.coordinates = at::zeros({3, 1, 1}, at::kLong);
  expect_contains(error(media), "position_ids must be int64 or fp32 of shape [3, 3, 48]");
  media = good;
  media.grids = good.grids.clone();
  media.grids[0][0] = 2;
  media.pixels = at::cat({good.pixels, good.pixels.narrow(0, 0, good.grids[0].prod().item<int64_t>())});
  expect_contains(error(media), "image 0 in image_grid_thw has 2 time patches");
}

TEST_F(BadMedia, PlaceholdersNeedMedia) {
  expect_contains(error({}), "row 0 has");
  expect_contains(error({}), "but there are no media");
  expect_contains(error(batch_.input_ids, batch_.media, model::without_towers(config_)), "have no vision tower here");
  const at::Tensor text = at::ones({1, 4}, at::kLong);
  EXPECT_EQ(error(text, {}, config_), "");
  const model::ModelConfig llama = model::read_model_config(golden_folder("llama"));
  EXPECT_EQ(error(text, {}, llama), "");
  expect_contains(error(text, {.coordinates = at::zeros({3, 1, 4}, at::kLong)}, llama), "leave it out");
}

// A video whose time patches are blocks of their own must have all of them in one row.
TEST_F(BadMedia, AVideoHasAllItsBlocks) {
  const model::ModelConfig config = model::read_model_config(golden_folder("qwen3_vl"));
  const int64_t video = config.media->video, width = config.vision->patch_pixels();
  const inference::MediaInput media{.video_pixels = at::zeros({8, width}), .video_grids = ids({2, 2, 2})};
  expect_contains(error(ids({1, 2, video, 3}), media, config), "row 0 ends after 1 of the 2 time patches of video 0");
  EXPECT_EQ(error(ids({1, video, 2, video}), media, config), "");
}

}  // namespace
}  // namespace megalith::testing
