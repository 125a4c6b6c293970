// Pictures, videos and sound in fine-tuning data, and the parts of models that see and hear.
//
// Each member is an option: options/media.cc gives its name, its range and its meaning, and docs/options.md shows them.
// Comments here add only what the help text does not say.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace megalith::config {

// The way from files of media to the input of towers. The numbers are LLaMA-Factory's.
struct MediaConfig {
  std::optional<std::string> media_dir;
  bool skip_broken_media = false;
  bool verify_media = false;
  // Pictures are resized into this range before the model's own processor sees them.
  int64_t image_max_pixels = 768 * 768;
  int64_t image_min_pixels = 32 * 32;
  // The same for each frame of a video.
  int64_t video_max_pixels = 256 * 256;
  int64_t video_min_pixels = 16 * 16;
  double video_fps = 2;
  int64_t video_maxlen = 128;
  bool use_audio_in_video = false;
  bool operator==(const MediaConfig&) const = default;
};

// The parts that are trained, and how fast. They concern models with towers only.
struct TowerConfig {
  bool freeze_vision_tower = true;
  bool freeze_multi_modal_projector = true;
  bool freeze_language_model = false;
  std::optional<double> vision_tower_lr;
  std::optional<double> projector_lr;
  bool operator==(const TowerConfig&) const = default;
};

}  // namespace megalith::config
