// Decodes a medium of a row: an image or a video into rows of patches, a sound into frames of its spectrogram.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "megalith/data/media_reference.h"
#include "megalith/media/audio.h"

namespace megalith::media {
class ImageProcessor;
class SoundProcessor;
class VideoProcessor;
}  // namespace megalith::media

namespace megalith::data {

// The processors of a model; nullptr where it takes no such media.
struct MediaProcessors {
  const media::ImageProcessor* images = nullptr;
  const media::VideoProcessor* videos = nullptr;
  const media::SoundProcessor* sounds = nullptr;
};

// Returns the name of a source in messages; `what` is that of bytes without a file, "an image".
std::string name_of(const MediaSource& source, const char* what = "an image");

// Returns the size of the sound in a video file; std::nullopt if it has none. Throws DataError, naming the file, for
// one that cannot be read.
std::optional<media::SoundHeader> sound_in_video(const MediaSource& source);

// Reads the header of a sound; a file that may hold videos, too, is marked as such (MediaSource::frame). Throws
// DataError, naming it, for one that cannot be read.
media::SoundHeader sound_header(MediaSource& source);

// A medium, and where its rows go: those of the patches of its grid, or its frames.
struct MediumRows {
  const MediaReference* medium = nullptr;
  float* rows = nullptr;
};

// Decodes a medium and drops the result. Throws like decode_media.
void check_decodes(const MediaReference& medium);

// Whether the second medium continues the first: time patches of one video file, which is then decoded once.
bool continues(const MediaReference& first, const MediaReference& second);

// Writes the rows of media of which each continues the one before. Throws a DataError that names the file for bytes
// that cannot be decoded, and for an image, frame or sound that has changed its size since it was tokenized.
void decode_media(std::span<const MediumRows> media, const MediaProcessors& processors);

}  // namespace megalith::data
