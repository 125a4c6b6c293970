// AudioTower: a transformer that turns spectrograms into rows of the language model's width.
//
//   frames [f, m] ─ chunks ─► three convolutions ─► linear, + positions ─► block ─► … ─► norm, MLP ─► rows [n, h]
//
// Positions restart in each chunk. Attention is not causal, and a row sees those of its window: some consecutive chunks
// of its sound. Covers the tower of Qwen3-Omni.
//
// Legend: f frames of all sounds, m mel bins, s chunks, c channels of the convolutions, n output rows, w width, h
// output width.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "megalith/nn/audio/audio_shape.h"
#include "megalith/nn/parameter/parameter.h"
#include "megalith/nn/tensor_parallel/replicated_linear.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"
#include "megalith/nn/vision/vision_tower.h"
#include "megalith/ops/sequence_layout.h"

namespace megalith::nn {

// Everything about a list of sounds that a tower needs besides their frames. Tensors are on the tower's device.
struct AudioIndices {
  // Every chunk is padded to its full length, whatever others are beside it: rows of a sound do not depend on the
  // micro-batch. (transformers pads to the longest chunk of a batch, which differs if all its sounds are below a
  // second.)
  at::Tensor frames;            // int64 [s · chunk]: frame i of the chunks is frame frames[i], or silence if that is f
  at::Tensor rows;              // int64 [n]: those of the s · chunk_rows() convolved rows that are not padding
  at::Tensor places;            // int64 [n]: the place of each in its chunk
  ops::SequenceLayout windows;  // rows that see each other
  int64_t chunks = 0;
};

// Returns the indices of a non-empty list of sounds. Does not wait for the device.
AudioIndices audio_indices(const AudioShape& shape, const std::vector<int64_t>& lengths, at::Device device);

// Parameters are replicated over the tensor-parallel group, whose ranks compute different sounds: gradients are partial
// and summed over the group at the end of the step. Used by one thread per rank.
//
// Names: conv1, conv2, conv3, frame, blocks.N.{attention_norm, attention.q, attention.k, attention.v, attention.proj,
// mlp_norm, mlp.up, mlp.down}, projector.{norm, up, down}.
class AudioTower {
 public:
  // Throws ConfigError for sizes that do not fit together.
  AudioTower(const ParameterScope& scope, const AudioShape& shape, TensorParallel tp);

  // features [f, m], of any floating type, on the host or the tower's device; `lengths` are the frames of each sound,
  // f together. With `recompute`, trained parts keep their input alone. Returns the rows [n, h], sound by sound.
  at::Tensor forward(const at::Tensor& features, const std::vector<int64_t>& lengths, bool recompute = false) const;

  const AudioShape& shape() const { return shape_; }
  // Returns whether anything in it is trained, so that its rows require a gradient.
  bool trains() const;
  // Returns the dtype and device of its rows.
  at::TensorOptions options() const { return frame_->weight().value.options(); }

 private:
  // A convolution over frequencies and time.
  struct Convolution {
    Parameter* weight;  // [c, inputs · 9]
    Parameter* bias;    // [c]
    bool trains() const;
  };
  Convolution make_convolution(const ParameterScope& scope, int64_t inputs, const TensorParallel& tp) const;
  // Indices of the most recent lists of sounds, newest first. Micro-batches of equal sounds share them.
  using IndicesPtr = std::shared_ptr<const AudioIndices>;
  struct Known {
    std::vector<int64_t> lengths;
    IndicesPtr indices;
  };
  IndicesPtr indices_of(const std::vector<int64_t>& lengths) const;
  at::Tensor convolve(const at::Tensor& chunks) const;  // [s, 1, m, chunk] -> [s · chunk_rows, c · conv_bins]
  at::Tensor embed(const at::Tensor& features, const AudioIndices& indices, bool recompute) const;  // -> [n, w]

  AudioShape shape_;
  std::vector<Convolution> convolutions_;
  std::optional<ReplicatedLinear> frame_;
  at::Tensor positions_;  // fp32 [chunk_rows, w]: sines, then cosines
  std::vector<std::unique_ptr<VisionBlock>> blocks_;
  std::optional<VisionMerger> projector_;
  mutable std::deque<Known> known_;
};

// Returns the tensors that the first product of the attention of a block fuses: q | k | v.
std::vector<OutputPart> audio_qkv_parts(const AudioShape& shape);

}  // namespace megalith::nn
