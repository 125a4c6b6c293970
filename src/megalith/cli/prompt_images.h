// Images of prompts (`megalith generate --image`): where they stand in a text, and their pixels.
//
//   "What is this? <image>"  ─►  "What is this? <|vision_start|><|image_pad|><|vision_end|>"  ─►  ids, with as many
//   placeholders as the image has tokens
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "megalith/inference/media_batch.h"
#include "megalith/media/image_processor.h"
#include "megalith/model/families/model_config.h"

namespace megalith::cli {

// Replaces the markers <image> in a text, or in the contents of a list of messages, by the texts of an image. Without
// markers, all images come before the text, or before that of the first user's message. Throws DataError if there are
// markers, but not as many as images.
void mark_images(nlohmann::ordered_json& given, size_t images);

// Reads images as the processor of a model does. Used by one thread.
class PromptImages {
 public:
  // Reads the processor's settings from the model's folder. Throws ConfigError if the model does not see, and DataError
  // if its processor does not fit its tower.
  PromptImages(const model::ModelConfig& config, const std::filesystem::path& folder);

  // Reads the images, and gives each single placeholder in `ids` the length of its image; longer runs stay. Throws
  // DataError for files that are not images, and if there are not as many placeholders as images.
  inference::MediaInput read(const std::vector<std::string>& files, std::vector<int64_t>& ids) const;

 private:
  int64_t placeholder_;
  media::ImageProcessor processor_;
};

}  // namespace megalith::cli
