// Positions of tokens in samples with pictures, videos and sound: three coordinates per token (time, height, width), by
// which rotary embeddings turn (mrope). Pure arithmetic on the sizes of the media; nothing is decoded.
//
// A sample is a list of segments. Tokens of text and sound have three equal coordinates, which count on; those of a
// picture stand in a grid that begins at the next position on each axis:
//
//   segments   text 2 | image of 2 x 3 tokens   | text 2
//   time       0 1      2 2 2 2 2 2               5 6
//   height     0 1      2 2 2 3 3 3               5 6
//   width      0 1      2 3 4 2 3 4               5 6
//
// After a medium, text continues at the largest coordinate used plus one, as in the papers and in transformers up to
// 4.57. (Version 5 continues after a video of qwen2_vl and qwen2_5_vl at its start plus the longer side, whatever its
// length in time, so that positions of the text can repeat those of the video.)
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace megalith::layout {

// How a family counts the time of videos.
enum class TimeRule {
  kFrames,        // qwen2_vl: one position per time patch
  kWholeSeconds,  // qwen2_5_vl: seconds times positions per second, rounded down
  kSeconds,       // qwen3_omni_moe: the same, not rounded
  kBlocks,        // qwen3_vl, qwen3_5 and their kin: a time patch is a block of its own between texts, like an image
};

// Settings of a family that positions depend on; config.json has them all.
struct PositionSettings {
  TimeRule time = TimeRule::kBlocks;
  int64_t merge = 2;                // patches per side of a token (spatial_merge_size)
  double positions_per_second = 1;  // tokens_per_second of qwen2_5_vl, position_id_per_seconds of qwen3_omni_moe
  bool operator==(const PositionSettings&) const = default;
};

// A part of a sample. The tokens that begin and end a medium are text.
struct TokenSegment {
  enum class Kind {
    kText,
    kImage,
    kVideo,
    kAudio,
    kAudioInVideo,  // both streams of a video with sound, merged by time
  };
  Kind kind = Kind::kText;
  int64_t tokens = 0;                         // number of tokens of text or sound
  int64_t frames = 1, rows = 0, columns = 0;  // patches of an image or video: in time, from top to bottom, across
  double seconds = 1;                         // time that one patch of a video covers
  bool operator==(const TokenSegment&) const = default;
};

// Returns the number of tokens of a segment.
int64_t tokens_in(const TokenSegment& segment, const PositionSettings& settings);

// Returns for each token of a video with sound whether it stands for sound. The streams are merged by time, the video's
// tokens first where they are equal. Counted from the segment's own start, so that the order is that of the text,
// whatever stands before it.
std::vector<bool> merged_order(const TokenSegment& segment, const PositionSettings& settings);

// The coordinates of a sample's tokens, in their order.
struct TokenPositions {
  std::vector<float> time, height, width;
  float next = 0;  // position at which a text after them begins
};
// Computes the coordinates of one sample; several samples in a row are computed one by one. Fractions, which only
// kSeconds has, are rounded to fp32 in every step, as transformers does. Throws InternalError for grids that the merge
// size does not divide, and for videos of several time patches under kBlocks.
TokenPositions token_positions(std::span<const TokenSegment> segments, const PositionSettings& settings);

}  // namespace megalith::layout
