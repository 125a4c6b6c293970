// Texts about images, videos and sounds: with a cache and in every layout the same as from running the whole text again
// for every token on one rank.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/hf/safetensors_file.h"
#include "megalith/inference/generate.h"
#include "megalith/nn/tensor_parallel/mappings.h"
#include "tests/inference/media_layouts.h"
#include "tests/support/expect.h"
#include "tests/support/golden_media.h"

namespace megalith::testing {
namespace {

constexpr int64_t kNewTokens = 8;

// The first row of a golden batch as a prompt, with its media.
struct MediaPrompt {
  inference::TextRequest request;
  std::vector<layout::TokenSegment> segments;
};

// Returns the first `count` media of a list, and their pixels.
void take_media(const at::Tensor& pixels, const at::Tensor& grids, int64_t count, at::Tensor& to_pixels,
                at::Tensor& to_grids) {
  if (count == 0) return;
  to_grids = grids.narrow(0, 0, count);
  to_pixels = pixels.narrow(0, 0, to_grids.prod(1).sum().item<int64_t>());
}

MediaPrompt first_row(const GoldenMedia& golden, const std::string& prefix) {
  const GoldenMediaBatch& batch = prefix.empty() ? golden.main : golden.mixed;
  const hf::SafetensorsFile file(golden.folder / "golden.safetensors");
  const auto get = [&](const std::string& name) {
    return file.find(prefix + name) ? file.tensor(prefix + name) : at::Tensor();
  };
  MediaPrompt prompt{.segments = batch.rows[0]};
  const at::Tensor ids = batch.input_ids[0].masked_select(batch.attention_mask[0].ne(0));
  prompt.request.prompt.assign(ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + ids.numel());
  int64_t images = 0, videos = 0, frames = 0, sounds = 0;
  for (const layout::TokenSegment& segment : prompt.segments) {
    using Kind = layout::TokenSegment::Kind;
    const bool both = segment.kind == Kind::kAudioInVideo;
    images += segment.kind == Kind::kImage ? 1 : 0;
    frames += both || segment.kind == Kind::kVideo ? segment.frames : 0;
    sounds += both || segment.kind == Kind::kAudio ? 1 : 0;
  }
  // Where a time patch is a segment of its own, the first video has as many as its grid says.
  const at::Tensor video_grids = get("video_grid_thw");
  for (; frames > 0; ++videos) frames -= video_grids[videos][0].item<int64_t>();
  inference::MediaInput& media = prompt.request.media;
  take_media(get("pixel_values"), get("image_grid_thw"), images, media.pixels, media.grids);
  take_media(get("pixel_values_videos"), video_grids, videos, media.video_pixels, media.video_grids);
  if (videos > 0 && get("second_per_grid_ts").defined())
    media.video_seconds = get("second_per_grid_ts").narrow(0, 0, videos);
  if (sounds > 0) {
    media.sounds = get("input_features").narrow(0, 0, sounds);
    media.sound_lengths = get("audio_feature_lengths").narrow(0, 0, sounds);
  }
  return prompt;
}

// Every token from the whole text so far, on one rank and without a cache. Coordinates come from the segments.
std::vector<int64_t> greedy_without_cache(const model::VirtualModels& models, const MediaPrompt& prompt,
                                          const layout::PositionSettings& settings) {
  const at::NoGradGuard no_grad;
  const inference::MediaBatch placed = inference::place_media(at::tensor(prompt.request.prompt, at::kLong).unsqueeze(0),
                                                              {}, prompt.request.media, models.config());
  const auto length = static_cast<int64_t>(prompt.request.prompt.size());
  const auto rows_with = [](const at::Tensor& rows, int64_t count) {
    return rows.defined() ? at::constant_pad_nd(rows[0], {0, count}, -1) : at::Tensor();
  };
  std::vector<int64_t> text = prompt.request.prompt;
  for (int64_t count = 0; count < kNewTokens; ++count) {
    std::vector<layout::TokenSegment> segments = prompt.segments;
    segments.push_back({.tokens = count});
    const layout::TokenPositions positions = layout::token_positions(segments, settings);
    const at::Tensor coordinates =
        at::stack({at::tensor(positions.time), at::tensor(positions.height), at::tensor(positions.width)});
    const at::Tensor logits =
        models[0].forward({.layout = ops::SequenceLayout::dense(1, length + count)
                                         .with_coordinates(coordinates.to(placed.coordinates.scalar_type())),
                           .ids = at::tensor(text, at::kLong),
                           .pixels = placed.pixels,
                           .grids = placed.grids,
                           .visual_rows = rows_with(placed.visual_rows, count),
                           .audio_features = placed.audio_features,
                           .audio_lengths = placed.audio_lengths,
                           .audio_rows = rows_with(placed.audio_rows, count),
                           .training = false});
    text.push_back(logits[length + count - 1].narrow(0, 0, models.config().vocab_size).argmax().item<int64_t>());
  }
  return {text.begin() + length, text.end()};
}

class GenerateMedia : public ::testing::TestWithParam<std::string> {};

TEST_P(GenerateMedia, CacheAndLayoutChangeNothing) {
  const GoldenMedia golden = read_golden_media(GetParam());
  // Two prompts: images, for a model that hears with a sound, and an image with a video.
  const std::vector<MediaPrompt> prompts{first_row(golden, ""), first_row(golden, "mixed.")};
  const std::vector<inference::TextRequest> requests{prompts[0].request, prompts[1].request};
  std::vector<std::vector<int64_t>> expected(2);
  run_media_model(GetParam(), {}, [&](const Rank&, model::VirtualModels& models) {
    for (size_t i = 0; i < 2; ++i) expected[i] = greedy_without_cache(models, prompts[i], golden.settings);
  });
  for (const MediaLayout& how : media_layouts_of(GetParam())) {
    // Delta nets have no cache over slices, with or without images.
    if (how.cp > 1 && model::read_model_config(golden_folder(GetParam())).delta_net) continue;
    SCOPED_TRACE(how.name());
    run_media_model(GetParam(), how, [&](const Rank&, model::VirtualModels& models) {
      EXPECT_EQ(inference::generate_texts(models, requests, {.max_new_tokens = kNewTokens}), expected);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(, GenerateMedia, ::testing::ValuesIn(golden_or_none(supported_media_models())),
                         golden_test_name<::testing::TestParamInfo<std::string>>);

// The answer is about the image: other pixels give other logits, which a warm draw shows.
TEST(GenerateMediaRequests, PixelsMatterAndMistakesAreNamed) {
  const GoldenMedia golden = read_golden_media("qwen2_5_vl");
  const MediaPrompt prompt = first_row(golden, "");
  inference::TextRequest other = prompt.request;
  other.media.pixels = -8 * prompt.request.media.pixels;
  run_media_model("qwen2_5_vl", {}, [&](const Rank&, model::VirtualModels& models) {
    const std::vector<inference::TextRequest> both{prompt.request, other};
    const auto texts = inference::generate_texts(models, both, {.temperature = 1, .max_new_tokens = 24});
    EXPECT_NE(texts[0], texts[1]);
    inference::TextRequest bad = prompt.request;
    bad.media = {};
    expect_error<DataError>([&] { inference::generate_texts(models, {&bad, 1}, {}); }, {"but there are no media"});
    bad = prompt.request;
    bad.prompt.erase(std::ranges::find(bad.prompt, models.config().media->image));
    expect_error<DataError>(
        [&] {
          inference::generate_texts(models, {&bad, 1}, {});
        },
        {"row 0 has a run of", "Give ids and pixels that were made together"});
  });
}

// The answer is about the sound as well, and padding after it is not part of it.
TEST(GenerateMediaRequests, SoundsMatterAndTheirPaddingDoesNot) {
  const GoldenMedia golden = read_golden_media("qwen3_omni_moe");
  const MediaPrompt prompt = first_row(golden, "");
  ASSERT_TRUE(prompt.request.media.hears());
  inference::TextRequest other = prompt.request, padded = prompt.request;
  other.media.sounds = -8 * prompt.request.media.sounds;
  padded.media.sounds = at::constant_pad_nd(prompt.request.media.sounds, {0, 40}, 3);
  run_media_model("qwen3_omni_moe", {}, [&](const Rank&, model::VirtualModels& models) {
    const std::vector<inference::TextRequest> all{prompt.request, other, padded};
    const auto texts = inference::generate_texts(models, all, {.temperature = 1, .max_new_tokens = 24});
    EXPECT_NE(texts[0], texts[1]);
    EXPECT_EQ(texts[0], texts[2]);
    inference::TextRequest bad = prompt.request;
    bad.media = {};
    expect_error<DataError>([&] { inference::generate_texts(models, {&bad, 1}, {}); }, {"placeholders"});
  });
}

}  // namespace
}  // namespace megalith::testing
