#include "tests/support/golden_media.h"

#include <ATen/ATen.h>

#include "megalith/base/error.h"
#include "megalith/hf/safetensors_file.h"
#include "tests/support/golden.h"
#include "tests/support/golden_model.h"

namespace megalith::testing {

namespace {

layout::TokenSegment segment_of(const nlohmann::json& entry) {
  using SegmentKind = layout::TokenSegment::Kind;
  static const std::map<std::string, SegmentKind> kinds{{"text", SegmentKind::kText},
                                                        {"image", SegmentKind::kImage},
                                                        {"video", SegmentKind::kVideo},
                                                        {"audio", SegmentKind::kAudio},
                                                        {"audio_in_video", SegmentKind::kAudioInVideo}};
  layout::TokenSegment segment{.kind = kinds.at(entry.at(0).get<std::string>())};
  if (segment.kind == SegmentKind::kText || segment.kind == SegmentKind::kAudio) {
    segment.tokens = entry.at(1).get<int64_t>();
    return segment;
  }
  const auto grid = entry.at(1).get<std::vector<int64_t>>();
  segment.frames = grid.at(0), segment.rows = grid.at(1), segment.columns = grid.at(2);
  if (entry.size() > 2) segment.seconds = entry.at(2).get<double>();
  if (entry.size() > 3) segment.tokens = entry.at(3).get<int64_t>();
  return segment;
}

std::vector<layout::TokenSegment> segments_of(const nlohmann::json& list) {
  std::vector<layout::TokenSegment> segments;
  for (const nlohmann::json& entry : list) segments.push_back(segment_of(entry));
  return segments;
}

GoldenMediaBatch read_batch(const hf::SafetensorsFile& file, const std::string& prefix, const nlohmann::json& fields) {
  const auto optional = [&](const std::string& name) {
    return file.find(prefix + name) ? file.tensor(prefix + name) : at::Tensor();
  };
  const auto needed = [&](const std::string& name) {
    if (!file.find(prefix + name)) skip_without_golden(prefix + name + " in " + file.path().string());
    return file.tensor(prefix + name);
  };
  GoldenMediaBatch batch{.input_ids = needed("input_ids"),
                         .attention_mask = needed("attention_mask"),
                         .labels = needed("labels"),
                         .position_ids = needed("position_ids"),
                         .logits = optional("logits"),
                         .token_losses = needed("token_losses"),
                         .image_embeds = optional("image_embeds"),
                         .video_embeds = optional("video_embeds"),
                         .image_pixels = optional("pixel_values"),
                         .video_pixels = optional("pixel_values_videos"),
                         .audio_embeds = optional("audio_embeds"),
                         .audio_features = optional("input_features"),
                         .audio_lengths = optional("audio_feature_lengths"),
                         .loss = golden_member(fields, "loss").get<double>(),
                         .grad_norm = golden_member(fields, "grad_norm").get<double>(),
                         .num_label_tokens = golden_member(fields, "num_label_tokens").get<int64_t>()};
  for (const nlohmann::json& row : golden_member(fields, "rows")) batch.rows.push_back(segments_of(row));
  return batch;
}

layout::PositionSettings settings_of(const nlohmann::json& config) {
  const auto type = config.at("model_type").get<std::string>();
  const nlohmann::json& whole = config.contains("thinker_config") ? config.at("thinker_config") : config;
  const nlohmann::json& vision = whole.at("vision_config");
  layout::PositionSettings settings{.merge = vision.value("spatial_merge_size", 2)};
  if (type == "qwen2_vl") settings.time = layout::TimeRule::kFrames;
  if (type == "qwen2_5_vl")
    settings.time = layout::TimeRule::kWholeSeconds,
    settings.positions_per_second = vision.value("tokens_per_second", 4.0);
  if (type == "qwen3_omni_moe")
    settings.time = layout::TimeRule::kSeconds,
    settings.positions_per_second = whole.value("position_id_per_seconds", 25.0);
  return settings;
}

}  // namespace

std::vector<std::string> golden_sight_names() { return golden_media_names(); }

GoldenPixels golden_pixels(const GoldenMediaBatch& batch, const std::vector<int64_t>& rows, int64_t merge) {
  using Kind = layout::TokenSegment::Kind;
  const int64_t length = batch.input_ids.size(1);
  GoldenPixels result;
  result.visual_rows = at::full({static_cast<int64_t>(rows.size()), length}, -1, at::kLong);
  result.audio_rows = result.visual_rows.clone();
  std::vector<at::Tensor> pixels, features;
  std::vector<int64_t> grids, lengths;
  int64_t images = 0, videos = 0, sounds = 0;  // patches and sounds before the current row's media
  int64_t visual_row = 0, audio_row = 0;       // the towers' rows so far
  for (int64_t row = 0; row < static_cast<int64_t>(batch.rows.size()); ++row) {
    const auto place = std::ranges::find(rows, row);
    int64_t token = 0;
    for (const layout::TokenSegment& segment : batch.rows[static_cast<size_t>(row)]) {
      const bool image = segment.kind == Kind::kImage, visual = image || segment.kind == Kind::kVideo;
      const int64_t patches = segment.frames * segment.rows * segment.columns;
      const int64_t tokens = visual ? patches / merge / merge : segment.tokens;
      // The medium's tokens are the next rows of its tower.
      const auto take = [&](at::Tensor& of_tokens, int64_t& tower_row) {
        of_tokens[place - rows.begin()]
            .narrow(0, token, tokens)
            .copy_(at::arange(tower_row, tower_row + tokens, at::kLong));
        tower_row += tokens;
      };
      int64_t& from = image ? images : videos;
      if (visual && place != rows.end()) {
        pixels.push_back((image ? batch.image_pixels : batch.video_pixels).narrow(0, from, patches));
        grids.insert(grids.end(), {segment.frames, segment.rows, segment.columns});
        take(result.visual_rows, visual_row);
      }
      if (visual) from += patches;
      if (segment.kind == Kind::kAudio) {
        if (place != rows.end()) {
          lengths.push_back(batch.audio_lengths[sounds].item<int64_t>());
          features.push_back(batch.audio_features[sounds].narrow(1, 0, lengths.back()).t());
          take(result.audio_rows, audio_row);
        }
        ++sounds;
      }
      token += tokens;
    }
  }
  if (pixels.empty()) {
    result.visual_rows = at::Tensor();
  } else {
    result.pixels = at::cat(pixels);
    result.grids = at::tensor(grids, at::kLong).view({-1, 3});
  }
  if (features.empty()) {
    result.audio_rows = at::Tensor();
  } else {
    result.audio_features = at::cat(features);
    result.audio_lengths = at::tensor(lengths, at::kLong);
  }
  return result;
}

GoldenMedia read_golden_media(const std::string& name) {
  if (name == kNoGolden) skip_without_golden("model folder with media (hf/*/golden.json)");
  GoldenMedia golden{.name = name, .folder = golden_dir() / "hf" / name};
  golden.config = golden_json("hf/" + name + "/config.json");
  golden.settings = settings_of(golden.config);
  const nlohmann::json numbers = golden_json("hf/" + name + "/golden.json");
  const hf::SafetensorsFile file(golden.folder / "golden.safetensors");
  golden.main = read_batch(file, "", numbers);
  golden.mixed = read_batch(file, "mixed.", golden_member(numbers, "mixed"));
  for (const nlohmann::json& prompt : numbers.value("positions", nlohmann::json::array())) {
    const bool other = has_golden(prompt, "position_ids_largest");
    golden.prompts.push_back(
        {segments_of(prompt.at("segments")),
         prompt.at(other ? "position_ids_largest" : "position_ids").get<std::vector<std::vector<double>>>(),
         prompt.at("rope_delta").get<double>(), other});
  }
  return golden;
}

}  // namespace megalith::testing
