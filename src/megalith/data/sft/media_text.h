// Images in conversations: markers in the text become placeholder tokens, as many as the vision tower will have rows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "megalith/data/media_reference.h"
#include "megalith/data/sample.h"
#include "megalith/data/sft/conversation.h"

namespace megalith::media {
class ImageProcessor;
}

namespace megalith::data {

// The text that stands for an image in a record, as in LLaMA-Factory.
inline constexpr std::string_view kImageMarker = "<image>";

// How images become tokens. The texts are tokens of the tokenizer, and those of all Qwen families.
struct MediaSettings {
  std::shared_ptr<const media::ImageProcessor> images;
  std::filesystem::path media_dir;  // relative paths are looked up here first
  bool skip_broken = false;         // a record whose image is missing or damaged is left out; otherwise it is an error
  std::string start = "<|vision_start|>";
  std::string image_pad = "<|image_pad|>";
  std::string end = "<|vision_end|>";
};

// Replaces the markers in the prompt and in a single answer by start, placeholders and end; returns the images in the
// order of their markers. Only the header of a file is read. Throws a DataError when the number of markers is not that
// of the images, when an image cannot be read, and for markers in the answers of a pair, which share their images.
std::vector<MediaReference> expand_images(Conversation& conversation, const MediaSettings& settings);

// Gives a row its images. Each run of the token `pad` is one of them. If the row has fewer runs than there are images,
// it was cut, and has the first ones (the last ones with `from_the_end`). Placeholders lose their labels. Throws a
// DataError when a run has another length than its image, because a text holds the token itself.
void attach_media(Sequence& row, std::vector<MediaReference> media, int32_t pad, bool from_the_end);

// Returns the number of runs of `pad`.
int64_t count_runs(const std::vector<int32_t>& ids, int32_t pad);

}  // namespace megalith::data
