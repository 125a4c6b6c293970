// Decodes an image or a video of a row into rows of patches.
#pragma once

#include <span>
#include <string>

#include "megalith/data/media_reference.h"

namespace megalith::media {
class ImageProcessor;
class VideoProcessor;
}  // namespace megalith::media

namespace megalith::data {

// The processors of a model; nullptr where it takes no such media.
struct MediaProcessors {
  const media::ImageProcessor* images = nullptr;
  const media::VideoProcessor* videos = nullptr;
};

// Returns the name of a source in messages.
std::string name_of(const MediaSource& source);

// A medium, and where the patch rows of its grid go.
struct MediumRows {
  const MediaReference* medium = nullptr;
  float* rows = nullptr;
};

// Decodes a medium and drops its pixels. Throws like decode_media.
void check_decodes(const MediaReference& medium);

// Whether the second medium continues the first: time patches of one video file, which is then decoded once.
bool continues(const MediaReference& first, const MediaReference& second);

// Writes the patch rows of media of which each continues the one before. Throws a DataError that names the file for
// bytes that cannot be decoded, and for an image or frame that has changed its size since it was tokenized.
void decode_media(std::span<const MediumRows> media, const MediaProcessors& processors);

}  // namespace megalith::data
