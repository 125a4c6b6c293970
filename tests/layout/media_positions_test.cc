// Positions of samples with media. The golden folders of the families check them against transformers
// (tests/model/golden_media_test.cc); here are the rules one by one.
#include "megalith/layout/media_positions.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"

namespace megalith::layout {
namespace {

using Numbers = std::vector<float>;
using SegmentKind = TokenSegment::Kind;

TokenSegment text(int64_t tokens) { return {.kind = SegmentKind::kText, .tokens = tokens}; }
TokenSegment video(int64_t frames, int64_t rows, int64_t columns, double seconds) {
  return {.kind = SegmentKind::kVideo, .frames = frames, .rows = rows, .columns = columns, .seconds = seconds};
}

TokenPositions of(const std::vector<TokenSegment>& segments, const PositionSettings& settings) {
  return token_positions(segments, settings);
}

TEST(MediaPositions, TextCountsAndImagesAreGrids) {
  const auto positions = of({text(2), {.kind = SegmentKind::kImage, .rows = 4, .columns = 6}, text(2)}, {});
  EXPECT_EQ(positions.time, (Numbers{0, 1, 2, 2, 2, 2, 2, 2, 5, 6}));
  EXPECT_EQ(positions.height, (Numbers{0, 1, 2, 2, 2, 3, 3, 3, 5, 6}));
  EXPECT_EQ(positions.width, (Numbers{0, 1, 2, 3, 4, 2, 3, 4, 5, 6}));
  EXPECT_EQ(positions.next, 7);
  EXPECT_EQ(of({}, {}).next, 0);
}

// A long video continues after its last time, not after its longer side.
TEST(MediaPositions, TextAfterAVideoContinuesAfterTheLargest) {
  const auto frames = of({text(1), video(5, 2, 2, 1), text(1)}, {.time = TimeRule::kFrames});
  EXPECT_EQ(frames.time, (Numbers{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(frames.height, (Numbers{0, 1, 1, 1, 1, 1, 6}));
  const auto seconds =
      of({text(1), video(3, 2, 2, 1.3), text(1)}, {.time = TimeRule::kWholeSeconds, .positions_per_second = 2});
  EXPECT_EQ(seconds.time, (Numbers{0, 1, 3, 6, 7}));
  const auto fractions =
      of({text(1), video(2, 2, 2, 0.7), text(1)}, {.time = TimeRule::kSeconds, .positions_per_second = 13});
  EXPECT_EQ(fractions.time, (Numbers{0, 1, 1 + 0.7F * 13, 2 + 0.7F * 13}));
}

// Sound counts like text; beside a video both streams begin together, and the video comes first where times are equal.
TEST(MediaPositions, SoundBesideAVideoIsMergedByTime) {
  const PositionSettings settings{.time = TimeRule::kSeconds, .positions_per_second = 2};
  const auto alone = of({text(1), {.kind = SegmentKind::kAudio, .tokens = 3}, text(1)}, settings);
  EXPECT_EQ(alone.width, (Numbers{0, 1, 2, 3, 4}));
  const TokenSegment both{
      .kind = SegmentKind::kAudioInVideo, .tokens = 4, .frames = 2, .rows = 2, .columns = 2, .seconds = 1};
  const auto merged = of({text(2), both, text(2)}, settings);
  // Video at 2 and 4, sound at 2, 3, 4, 5.
  EXPECT_EQ(merged.time, (Numbers{0, 1, 2, 2, 3, 4, 4, 5, 6, 7}));
  EXPECT_EQ(merged.height, (Numbers{0, 1, 2, 2, 3, 2, 4, 5, 6, 7}));
  EXPECT_EQ(tokens_in(both, settings), 6);
}

TEST(MediaPositions, ImpossibleGridsAreRefused) {
  EXPECT_THROW(of({{.kind = SegmentKind::kImage, .rows = 3, .columns = 2}}, {}), InternalError);
  EXPECT_THROW(of({video(2, 2, 2, 1)}, {.time = TimeRule::kBlocks}), InternalError);
}

}  // namespace
}  // namespace megalith::layout
