// The segment of tokens that a medium is, from which positions are counted.
#pragma once

#include "megalith/data/media_reference.h"
#include "megalith/layout/media_positions.h"

namespace megalith::data {

// `sound` is that of a video whose tokens are merged with it, or nullptr.
inline layout::TokenSegment segment_of(const MediaReference& medium, const MediaReference* sound = nullptr) {
  using Kind = layout::TokenSegment::Kind;
  if (medium.is_sound()) return {.kind = Kind::kAudio, .tokens = medium.tokens};
  return {.kind = sound != nullptr                   ? Kind::kAudioInVideo
                  : medium.kind == MediaKind::kVideo ? Kind::kVideo
                                                     : Kind::kImage,
          .tokens = sound != nullptr ? sound->tokens : 0,
          .frames = medium.grid[0],
          .rows = medium.grid[1],
          .columns = medium.grid[2],
          .seconds = medium.seconds};
}

}  // namespace megalith::data
