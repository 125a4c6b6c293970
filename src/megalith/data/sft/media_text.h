// Media in conversations: markers in the text become placeholder tokens, as many as the tower will have rows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/data/media_reference.h"
#include "megalith/data/sample.h"
#include "megalith/data/sft/conversation.h"
#include "megalith/layout/media_positions.h"

namespace megalith::media {
class ImageProcessor;
class SoundProcessor;
class VideoProcessor;
}  // namespace megalith::media

namespace megalith::data {

// The texts that stand for an image, a video and a sound in a record, as in LLaMA-Factory.
inline constexpr std::string_view kImageMarker = "<image>";
inline constexpr std::string_view kVideoMarker = "<video>";
inline constexpr std::string_view kSoundMarker = "<audio>";

// How media become tokens. The texts are tokens of the tokenizer, and those of all Qwen families.
struct MediaSettings {
  // nullptr: records with such media are refused.
  std::shared_ptr<const media::ImageProcessor> images{};
  std::shared_ptr<const media::VideoProcessor> videos{};
  std::shared_ptr<const media::SoundProcessor> sounds{};
  std::filesystem::path media_dir;  // relative paths are looked up here first
  bool skip_broken = false;         // a record whose media are missing or damaged is left out; otherwise it is an error
  // Decode all media while tokenizing, so that damage after a header shows there, with the record's file and line,
  // instead of in the middle of training. Done also with skip_broken.
  bool decode_all = false;
  double video_fps = 2;        // frames that are taken of a second of a video file, and that a list of images has
  int64_t video_maxlen = 128;  // the most frames that are taken of a video file
  // Whether each time patch of a video is a block of its own after a text with its time, as in Qwen3-VL and Qwen3.5
  // (layout::TimeRule::kBlocks).
  bool video_blocks = false;
  // Videos are read with sound, which is merged with their frames by time: the sound of the <audio> that follows the
  // marker where the record has as many sounds as videos, and otherwise that of the file. Needs `sounds`.
  bool audio_in_video = false;
  layout::PositionSettings positions{};  // the model's rule, by which sound and frames are merged
  std::string start = "<|vision_start|>";
  std::string image_pad = "<|image_pad|>";
  std::string video_pad = "<|video_pad|>";
  std::string end = "<|vision_end|>";
  std::string sound_start = "<|audio_start|>";
  std::string sound_pad = "<|audio_pad|>";
  std::string sound_end = "<|audio_end|>";
};

// The ids of the placeholders.
struct MediaPads {
  int32_t image = -1;
  int32_t video = -1;
  int32_t sound = -1;

  // Returns those that there are.
  std::vector<int32_t> all() const;
};

// Replaces the markers in the prompt and in a single answer by start, placeholders and end; returns the media in the
// order of their tokens. Only the headers of files are read. Throws a DataError when the number of markers is not that
// of the media, when a medium cannot be read, and for markers in the answers of a pair, which share their media.
std::vector<MediaReference> expand_media(Conversation& conversation, const MediaSettings& settings);

// Gives a row its media. Each run of placeholders is one of them, or a video with its sound. If the row has fewer runs
// than there are media, it was cut, and has the first ones (the last ones with `from_the_end`). Placeholders lose their
// labels. Throws a DataError when a run has another length than its medium, because a text holds the token itself.
void attach_media(Sequence& row, std::vector<MediaReference> media, const MediaPads& pads, bool from_the_end);

// Returns the number of runs of placeholders, in a row and of the media of a whole one.
int64_t count_runs(const std::vector<int32_t>& ids, const MediaPads& pads);
int64_t count_runs(std::span<const MediaReference> media);

}  // namespace megalith::data
