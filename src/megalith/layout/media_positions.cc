#include "megalith/layout/media_positions.h"

#include <algorithm>
#include <cmath>

#include "megalith/base/error.h"

namespace megalith::layout {

namespace {

// One token's coordinates.
struct Point {
  float time, height, width;
  float largest() const { return std::max({time, height, width}); }
};

bool is_grid(TokenSegment::Kind kind) {
  return kind == TokenSegment::Kind::kImage || kind == TokenSegment::Kind::kVideo ||
         kind == TokenSegment::Kind::kAudioInVideo;
}

// Returns how far the time of patch k is from the beginning.
float time_of(int64_t k, const TokenSegment& segment, const PositionSettings& settings) {
  const auto patch = static_cast<float>(k);
  if (segment.kind == TokenSegment::Kind::kImage || settings.time == TimeRule::kFrames) return patch;
  const float position =
      patch * static_cast<float>(segment.seconds) * static_cast<float>(settings.positions_per_second);
  return settings.time == TimeRule::kWholeSeconds ? std::floor(position) : position;
}

std::vector<Point> grid_points(const TokenSegment& segment, const PositionSettings& settings, float start) {
  const int64_t merge = settings.merge;
  check(merge > 0 && segment.rows % merge == 0 && segment.columns % merge == 0,
        "a grid of {} x {} patches cannot be merged by {}", segment.rows, segment.columns, merge);
  check(segment.frames == 1 || settings.time != TimeRule::kBlocks,
        "a video of {} time patches in one block; this family has one block per time patch", segment.frames);
  std::vector<Point> points;
  for (int64_t k = 0; k < segment.frames; ++k)
    for (int64_t y = 0; y < segment.rows / merge; ++y)
      for (int64_t x = 0; x < segment.columns / merge; ++x)
        points.push_back(
            {time_of(k, segment, settings) + start, static_cast<float>(y) + start, static_cast<float>(x) + start});
  return points;
}

std::vector<Point> line_points(int64_t tokens, float start) {
  std::vector<Point> points;
  for (int64_t i = 0; i < tokens; ++i) {
    const float position = static_cast<float>(i) + start;
    points.push_back({position, position, position});
  }
  return points;
}

float largest_of(std::span<const Point> points) {
  float largest = points.front().largest();
  for (const Point& point : points) largest = std::max(largest, point.largest());
  return largest;
}

void append(std::span<const Point> points, TokenPositions& to) {
  for (const Point& point : points) {
    to.time.push_back(point.time);
    to.height.push_back(point.height);
    to.width.push_back(point.width);
  }
}

// Takes the streams in their merged order. As in transformers, what follows continues after the part of one stream that
// is left when the other has ended.
void append_merged(const std::vector<bool>& order, std::span<const Point> video, std::span<const Point> audio,
                   TokenPositions& to) {
  for (const bool sound : order) {
    if (video.empty() || audio.empty()) break;
    std::span<const Point>& first = sound ? audio : video;
    append(first.first(1), to);
    first = first.subspan(1);
  }
  const std::span<const Point> left = video.empty() ? audio : video;
  append(left, to);
  if (!left.empty()) to.next = largest_of(left) + 1;
}

}  // namespace

int64_t tokens_in(const TokenSegment& segment, const PositionSettings& settings) {
  const int64_t in_grid =
      is_grid(segment.kind) ? segment.frames * (segment.rows / settings.merge) * (segment.columns / settings.merge) : 0;
  const bool counts = !is_grid(segment.kind) || segment.kind == TokenSegment::Kind::kAudioInVideo;
  return in_grid + (counts ? segment.tokens : 0);
}

std::vector<bool> merged_order(const TokenSegment& segment, const PositionSettings& settings) {
  const std::vector<Point> video = grid_points(segment, settings, 0);
  std::vector<bool> order;
  int64_t sounds = 0;
  for (const Point& point : video) {
    for (; sounds < segment.tokens && static_cast<float>(sounds) < point.time; ++sounds) order.push_back(true);
    order.push_back(false);
  }
  order.resize(video.size() + static_cast<size_t>(segment.tokens), true);
  return order;
}

TokenPositions token_positions(std::span<const TokenSegment> segments, const PositionSettings& settings) {
  TokenPositions positions;
  for (const TokenSegment& segment : segments) {
    if (segment.kind == TokenSegment::Kind::kAudioInVideo) {
      append_merged(merged_order(segment, settings), grid_points(segment, settings, positions.next),
                    line_points(segment.tokens, positions.next), positions);
      continue;
    }
    const std::vector<Point> points = is_grid(segment.kind) ? grid_points(segment, settings, positions.next)
                                                            : line_points(segment.tokens, positions.next);
    append(points, positions);
    if (!points.empty()) positions.next = largest_of(points) + 1;
  }
  return positions;
}

}  // namespace megalith::layout
