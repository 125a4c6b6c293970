// AudioShape: the sizes of an audio tower, which turns the frames of a spectrogram into rows that replace token
// embeddings.
//
// A frame is the loudness of `mel_bins` bands of frequencies during 25 ms; frames begin every 10 ms. A sound is cut
// into chunks of `chunk` frames, of which three convolutions with stride 2 make an eighth as many rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "megalith/nn/vision/vision_shape.h"

namespace megalith::nn {

// Everything that decides the computation of a tower.
struct AudioShape {
  // Blocks, their width, and the width of the output rows, which is that of the language model.
  int64_t depth = 0;
  int64_t width = 0;
  int64_t heads = 0;
  int64_t mlp_width = 0;
  int64_t out_width = 0;
  ops::Activation activation = ops::Activation::kGelu;  // inside the MLPs
  double norm_epsilon = 1e-5;

  // Bands of a frame, channels of the convolutions, frames of a chunk, and frames that attention covers at once.
  int64_t mel_bins = 128;
  int64_t conv_channels = 0;
  int64_t chunk = 100;
  int64_t window = 800;
  int64_t conv_chunks = 500;  // chunks that are convolved at once: bounds memory, and changes no result

  double init_std = 0.02;  // standard deviation of initial weights

  bool operator==(const AudioShape&) const = default;

  // Bands that are left after the convolutions, rows of a whole chunk, and rows that attention covers at once.
  int64_t conv_bins() const;
  int64_t chunk_rows() const;
  int64_t window_rows() const { return chunk_rows() * (window / chunk); }
  // Returns the output rows of a sound: those of its whole chunks and of the rest.
  int64_t rows(int64_t frames) const;
  // Returns the sizes of its blocks and of the product at its end, in the form that those of vision towers have.
  VisionShape blocks() const;
};

// Returns one message per inconsistent field, each with the allowed values; empty if all is well.
std::vector<std::string> problems(const AudioShape& shape);

// Returns the frames of each sound, from int64 [sounds] on the host. An undefined tensor has none. Throws DataError for
// lengths below 1.
std::vector<int64_t> audio_lengths(const at::Tensor& lengths);

}  // namespace megalith::nn
