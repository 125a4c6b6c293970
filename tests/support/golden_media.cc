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

std::vector<std::string> golden_sight_names() {
  std::vector<std::string> names = golden_media_names();
  std::erase_if(names, [](const std::string& name) { return golden_model_type(name) == "qwen3_omni_moe"; });
  return names;
}

GoldenPixels golden_pixels(const GoldenMediaBatch& batch, const std::vector<int64_t>& rows, int64_t merge) {
  using Kind = layout::TokenSegment::Kind;
  const int64_t length = batch.input_ids.size(1);
  GoldenPixels result;
  result.visual_rows = at::full({static_cast<int64_t>(rows.size()), length}, -1, at::kLong);
  std::vector<at::Tensor> pixels;
  std::vector<int64_t> grids;
  int64_t images = 0, videos = 0, tower_row = 0;  // patches before the current row's media
  for (int64_t row = 0; row < static_cast<int64_t>(batch.rows.size()); ++row) {
    const auto place = std::ranges::find(rows, row);
    int64_t token = 0;
    for (const layout::TokenSegment& segment : batch.rows[static_cast<size_t>(row)]) {
      const bool image = segment.kind == Kind::kImage;
      if (!image && segment.kind != Kind::kVideo) {
        token += segment.tokens;
        continue;
      }
      const int64_t patches = segment.frames * segment.rows * segment.columns, tokens = patches / merge / merge;
      int64_t& from = image ? images : videos;
      if (place != rows.end()) {
        pixels.push_back((image ? batch.image_pixels : batch.video_pixels).narrow(0, from, patches));
        grids.insert(grids.end(), {segment.frames, segment.rows, segment.columns});
        result.visual_rows[place - rows.begin()]
            .narrow(0, token, tokens)
            .copy_(at::arange(tower_row, tower_row + tokens, at::kLong));
        tower_row += tokens;
      }
      from += patches;
      token += tokens;
    }
  }
  if (pixels.empty()) return {};
  result.pixels = at::cat(pixels);
  result.grids = at::tensor(grids, at::kLong).view({-1, 3});
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
