// Media of token rows: which output row of its tower each placeholder takes, and where in time, height and width every
// token stands.
//
//   ids          5 | image image image image | 7       a run of placeholders is one image, one video, or one time patch
//   visual_rows -1 |   0     1     2     3   | -1      of a video (families that count time in blocks); one of
//                                                      placeholders of sound is one sound, and one of both kinds is a
//                                                      video with its sound
//
// Legend: b rows, s tokens of a row, p patches of all media, c numbers of a patch, f frames of all sounds, m mel bins.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "megalith/model/families/model_config.h"

namespace megalith::inference {

// Media as processors of transformers return them, in the order in which the rows use them. Undefined means none.
struct MediaInput {
  at::Tensor pixels = {};         // pixel_values [p, c]
  at::Tensor grids = {};          // image_grid_thw, int64 [images, 3]: time, height and width in patches
  at::Tensor video_pixels = {};   // pixel_values_videos [p, c]
  at::Tensor video_grids = {};    // video_grid_thw, int64 [videos, 3]
  at::Tensor video_seconds = {};  // second_per_grid_ts [videos]: seconds that a time patch covers; undefined = 1 each
  at::Tensor coordinates = {};    // position_ids [3, b, s], int64 or fp32; undefined = computed
  at::Tensor sounds = {};         // input_features [sounds, m, frames], padded at their ends
  at::Tensor sound_lengths = {};  // int64 [sounds]: frames of each that are not padding

  bool sees() const { return grids.defined() || video_grids.defined(); }
  bool hears() const { return sounds.defined(); }
  bool any() const { return sees() || hears(); }
};

// The media of some rows in the form that a model takes.
struct MediaBatch {
  // Images and videos together, in the order of their first tokens; undefined if the rows have none.
  at::Tensor pixels = {};       // [p, c]
  at::Tensor grids = {};        // int64 [media, 3]
  at::Tensor visual_rows = {};  // int64 [b, s], -1 for text
  at::Tensor coordinates = {};  // int64 or fp32 [3, b, s]; 0 for padding. Undefined without any media
  // Sounds likewise; audio_rows is defined with them.
  at::Tensor audio_features = {};  // [f, m]
  at::Tensor audio_lengths = {};   // int64 [sounds]
  at::Tensor audio_rows = {};      // int64 [b, s], -1 for others
  // Numbers of media, patches and output rows before each row, and of sounds, their frames and output rows; at the end
  // those of all rows.
  struct Begin {
    int64_t media = 0;
    int64_t patches = 0;
    int64_t outputs = 0;
    int64_t sounds = 0;
    int64_t frames = 0;
    int64_t sound_outputs = 0;
  };
  std::vector<Begin> begins = {};

  // Returns the media of rows [first, first + count).
  MediaBatch rows(int64_t first, int64_t count) const;
};

// Finds the media of the rows `ids` int64 [b, s]; `mask` int64 [b, s] is 0 for padding, undefined if there is none.
// Without media and coordinates the result is empty. Throws DataError where placeholders and grids or grids and pixels
// disagree, with the row and both counts, and ConfigError for media that the model does not take.
MediaBatch place_media(const at::Tensor& ids, const at::Tensor& mask, const MediaInput& media,
                       const model::ModelConfig& config);

}  // namespace megalith::inference
