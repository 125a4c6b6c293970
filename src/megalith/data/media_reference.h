// MediaReference: an image or a video of a sample, by where its bytes are. Pixels are decoded when a micro-batch is
// made.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace megalith::data {

// One frame of a video: an image, or a frame of a video file.
struct MediaFrame {
  std::string file;
  int64_t offset = 0;   // of an image: the first of its bytes in the file
  int64_t bytes = -1;   // their number; -1: all up to the end of the file
  int64_t number = -1;  // in a video file; -1: the bytes are an image
  auto operator<=>(const MediaFrame&) const = default;
};

// The tokens of a medium are the placeholders [first, first + tokens) of its row. Families that write a timestamp
// before each time patch of a video have one medium per time patch.
struct MediaReference {
  std::string file;               // of an image; empty for a video
  int64_t offset = 0;             // as in MediaFrame
  int64_t bytes = -1;             // likewise
  std::array<int64_t, 3> grid{};  // patches in time, height and width
  int64_t first = 0;
  int64_t tokens = 0;
  std::vector<MediaFrame> frames{};  // of a video: as many as its time patches hold; empty for an image
  double seconds = 1;                // of a video: the time that one patch covers

  bool is_video() const { return !frames.empty(); }
  bool operator==(const MediaReference&) const = default;
};

}  // namespace megalith::data
