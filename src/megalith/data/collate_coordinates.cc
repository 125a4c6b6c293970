// Coordinates of a micro-batch: each strip is one sample, or several that attend to one another (plain packing), where
// positions still restart in each. The media of a sample cut it into segments of text and media, from which
// layout::token_positions counts.
#include "megalith/data/collate_coordinates_internal.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/data/media_segment_internal.h"

namespace megalith::data {
namespace {

using layout::PositionSettings;
using layout::TokenSegment;

// The segments of the row's tokens [begin, end), which are one sample.
std::vector<TokenSegment> segments_of(const Sequence& row, int64_t begin, int64_t end) {
  std::vector<TokenSegment> segments;
  const auto add_text = [&](int64_t tokens) {
    if (tokens > 0) segments.push_back({.kind = TokenSegment::Kind::kText, .tokens = tokens});
  };
  for (size_t i = 0; i < row.media.size(); ++i) {
    const MediaReference& medium = row.media[i];
    if (medium.first < begin || medium.first >= end || medium.kind == MediaKind::kSoundOfVideo) continue;
    const MediaReference* const sound = sound_of(row.media, i);
    add_text(medium.first - begin);
    segments.push_back(segment_of(medium, sound));
    begin = medium.first + medium.tokens + (sound != nullptr ? sound->tokens : 0);
  }
  check(begin <= end, "a medium at the end of a sequence");
  add_text(end - begin);
  return segments;
}

// Writes the coordinates of the row's tokens [begin, end) to `out`; the axes are `total` numbers apart.
void write_sample(const Sequence& row, int64_t begin, int64_t end, const PositionSettings& settings, float* out,
                  int64_t total) {
  const layout::TokenPositions positions = layout::token_positions(segments_of(row, begin, end), settings);
  check(std::ssize(positions.time) == end - begin, "{} coordinates of {} tokens: the merge size is not the tower's",
        positions.time.size(), end - begin);
  for (const std::vector<float>* axis : {&positions.time, &positions.height, &positions.width}) {
    std::ranges::copy(*axis, out);
    out += total;
  }
}

void write_from_media(const Strip& strip, const PositionSettings& settings, float* out, int64_t total) {
  const Sequence& row = *strip.row;
  const int64_t end = strip.begin + strip.tokens;
  if (!row.pieces_attend || row.pieces.size() <= 1) return write_sample(row, strip.begin, end, settings, out, total);
  int64_t begin = 0;
  for (const int64_t piece : row.pieces) {
    const int64_t piece_end = std::min(begin + piece, end);
    if (piece_end > begin) write_sample(row, begin, piece_end, settings, out + begin, total);
    begin += piece;
  }
}

void write_given(const Strip& strip, float* out, int64_t total) {
  const std::vector<float>& given = strip.row->coordinates;
  const auto tokens = std::ssize(strip.row->ids);
  check(std::ssize(given) == 3 * tokens, "a row of {} tokens with {} numbers for its coordinates", tokens,
        given.size());
  for (int64_t axis = 0; axis < 3; ++axis)
    std::copy_n(given.begin() + axis * tokens + strip.begin, strip.tokens, out + axis * total);
}

}  // namespace

ops::SequenceLayout with_coordinates(const ops::SequenceLayout& layout, std::span<const Strip> strips,
                                     const std::optional<PositionSettings>& settings) {
  const auto given = [](const Strip& strip) { return !strip.row->coordinates.empty(); };
  // Positions of sounds alone are those of text.
  const auto counts = [](const MediaReference& medium) { return medium.kind != MediaKind::kSound; };
  const auto from_media = [&](const Strip& strip) { return settings && std::ranges::any_of(strip.row->media, counts); };
  const auto any = [&](const Strip& strip) { return given(strip) || from_media(strip); };
  if (std::ranges::none_of(strips, any)) return layout;
  at::Tensor coordinates = layout.positions(at::kCPU).to(at::kFloat).repeat({3, 1});
  const int64_t total = coordinates.size(1);
  float* out = coordinates.mutable_data_ptr<float>();
  for (const Strip& strip : strips) {
    if (any(strip)) {
      for (int64_t axis = 0; axis < 3; ++axis)
        std::fill_n(out + axis * total + strip.tokens, strip.length - strip.tokens, 0.0F);
      if (given(strip))
        write_given(strip, out, total);
      else
        write_from_media(strip, *settings, out, total);
    }
    out += strip.length;
  }
  return layout.with_coordinates(std::move(coordinates));
}

}  // namespace megalith::data
