// MediaReference: an image or a video of a sample, by where its bytes are. Pixels are decoded when a micro-batch is
// made.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace megalith::data {

// The place of the bytes of an image or of a video's frame: a file of their own, a part of a file, or memory.
struct MediaSource {
  std::string file;                           // for bytes in memory a name for messages, which may be empty
  int64_t offset = 0;                         // the first of the bytes in the file
  int64_t bytes = -1;                         // their number; -1: all up to the end of the file
  int64_t frame = -1;                         // the number of a frame in a video file; -1: the bytes are an image
  std::shared_ptr<const std::string> held{};  // bytes in memory, until a token folder stores them; else nullptr

  auto operator<=>(const MediaSource&) const = default;
};

// The tokens of a medium are the placeholders [first, first + tokens) of its row. Families that write a timestamp
// before each time patch of a video have one medium per time patch.
struct MediaReference {
  std::vector<MediaSource> sources{};  // one for an image; the frames of a video, at most those of its time patches
  std::array<int64_t, 3> grid{};       // patches in time, height and width
  int64_t first = 0;
  int64_t tokens = 0;
  bool video = false;
  double seconds = 1;  // that a time patch of a video covers
  bool operator==(const MediaReference&) const = default;
};

}  // namespace megalith::data
