// Images and sounds of prompts (`megalith generate --image`, `--audio`): where they stand in a text, and what the
// towers take of them.
//
//   "What is this? <image>"  ─►  "What is this? <|vision_start|><|image_pad|><|vision_end|>"  ─►  ids, with as many
//   placeholders as the image has tokens
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "megalith/inference/media_batch.h"
#include "megalith/media/image_processor.h"
#include "megalith/media/sound_processor.h"
#include "megalith/model/families/model_config.h"

namespace megalith::cli {

// The files that a prompt is about, each kind in the order of its markers.
struct PromptFiles {
  std::vector<std::string> images{};
  std::vector<std::string> sounds{};

  bool any() const { return !images.empty() || !sounds.empty(); }
};

// Replaces the markers <image> and <audio> in a text, or in the contents of a list of messages, by the texts of an
// image and of a sound. Media of a kind without markers come before the text, or before that of the first user's
// message: images, then sounds. Throws DataError if there are markers of a kind, but not as many as files.
void mark_media(nlohmann::ordered_json& given, const PromptFiles& files);

// Reads images and sounds as the processors of a model do. Used by one thread.
class PromptMedia {
 public:
  // The settings of the processors are read from the model's folder, each with the first file of its kind.
  PromptMedia(const model::ModelConfig& config, std::filesystem::path folder);

  // Reads the files, and gives each single placeholder in `ids` the length of its medium; longer runs stay. Throws
  // ConfigError for media that the model does not take, and DataError for files that are not such media, for processors
  // that do not fit the towers, and if there are not as many placeholders as media.
  inference::MediaInput read(const PromptFiles& files, std::vector<int64_t>& ids);

 private:
  // Both return the tokens of each medium.
  std::vector<int64_t> read_images(const std::vector<std::string>& files, inference::MediaInput& to);
  std::vector<int64_t> read_sounds(const std::vector<std::string>& files, inference::MediaInput& to);

  const model::ModelConfig config_;
  const std::filesystem::path folder_;
  std::optional<media::ImageProcessor> images_;
  std::optional<media::SoundProcessor> sounds_;
};

}  // namespace megalith::cli
