// MediaReference: an image of a sample, by where its bytes are. Pixels are decoded when a micro-batch is made.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace megalith::data {

// The tokens of a medium are the placeholders [first, first + tokens) of its row.
struct MediaReference {
  std::string file;
  int64_t offset = 0;             // the first of its bytes in the file
  int64_t bytes = -1;             // their number; -1: all up to the end of the file
  std::array<int64_t, 3> grid{};  // patches in time, height and width
  int64_t first = 0;
  int64_t tokens = 0;
  bool operator==(const MediaReference&) const = default;
};

}  // namespace megalith::data
