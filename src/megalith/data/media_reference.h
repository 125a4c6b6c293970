// MediaReference: an image, a video or a sound of a sample, by where its bytes are. They are decoded when a micro-batch
// is made.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace megalith::data {

// The place of the bytes of an image, of a video's frame or of a sound: a file of their own, a part of one, or memory.
struct MediaSource {
  std::string file;    // for bytes in memory a name for messages, which may be empty
  int64_t offset = 0;  // the first of the bytes in the file
  int64_t bytes = -1;  // their number; -1: all up to the end of the file
  // The number of a frame in a video file, 0 for the sound of one; -1: the bytes are an image or a sound themselves.
  int64_t frame = -1;
  std::shared_ptr<const std::string> held{};  // bytes in memory, until a token folder stores them; else nullptr

  auto operator<=>(const MediaSource&) const = default;
};

// Stored on disk: must not change.
enum class MediaKind {
  kImage = 0,
  kVideo = 1,
  kSound = 2,
  kSoundOfVideo = 3,  // belongs to the video before it in the list; their tokens are merged by time
};

// The tokens of a medium are the placeholders [first, first + tokens) of its row. Those of a video and its sound
// alternate: both have the same `first`, and together they are [first, first + tokens of both). Families that write a
// timestamp before each time patch of a video have one medium per time patch.
struct MediaReference {
  std::vector<MediaSource>
      sources{};                  // one for an image or a sound; the frames of a video, at most those of its patches
  std::array<int64_t, 3> grid{};  // patches in time, height and width; a sound of n frames: n, 1, 1
  int64_t first = 0;
  int64_t tokens = 0;
  MediaKind kind = MediaKind::kImage;
  double seconds = 1;  // that a time patch of a video covers

  bool is_sound() const { return kind == MediaKind::kSound || kind == MediaKind::kSoundOfVideo; }
  bool operator==(const MediaReference&) const = default;
};

// Returns the sound that belongs to medium i of a row; nullptr if it has none.
inline const MediaReference* sound_of(std::span<const MediaReference> media, size_t i) {
  return i + 1 < media.size() && media[i + 1].kind == MediaKind::kSoundOfVideo ? &media[i + 1] : nullptr;
}

}  // namespace megalith::data
