// AudioFootprint: memory and work of an audio tower on a rank: convolutions, the product that makes rows of them, and
// what all towers have (vision/tower_footprint.h).
//
// Legend: f frames, s chunks and n rows of the sounds of this rank, m mel bins, c channels of the convolutions, w width
// of the tower.
#pragma once

#include <array>
#include <vector>

#include "megalith/nn/audio/audio_shape.h"
#include "megalith/nn/tensor_parallel/linear_footprint.h"
#include "megalith/nn/vision/tower_footprint.h"

namespace megalith::nn {

// For the sounds that RankSizes states. Constant after construction; may be walked several times.
class AudioFootprint final : public TowerFootprint {
 public:
  // `rank` holds the sounds and the sizes of the language model.
  AudioFootprint(const RankSizes& rank, const AudioShape& shape, const TowerTraining& training);

  void forward(MemoryWalk& memory) const override;
  void backward(MemoryWalk& memory) const override;
  void input_work(WorkMeter& meter) const override;
  const TowerParts& parts() const override { return parts_; }

 private:
  // Numbers in the result of each convolution for one chunk. The last one are those of the rows of the chunk.
  std::array<double, 3> convolved() const;
  std::vector<double> groups() const;  // chunks of each group that is convolved at once
  // Whether the convolutions are trained: with adapters they are not, even if the product has an update.
  bool trains_convolutions() const { return !own_.frozen; }
  double copied_frames() const;    // bytes of the frames in the dtype of the tower, and of the share of a rank
  double chunk_bytes() const;      // bytes of all chunks, padded
  double convolved_bytes() const;  // bytes of the rows of all chunks, padding included
  double input_bytes() const;      // bytes of the rows that the product reads
  // Walk through the convolutions of so many chunks, whose rows are added, and back from the gradient of these rows,
  // which stays.
  void convolve(MemoryWalk& memory, double chunks, bool keep) const;
  void convolve_backward(MemoryWalk& memory, double chunks) const;

  const RankSizes rank_;  // sizes of the language model
  const AudioShape shape_;
  const RankSizes own_;  // sizes of the product
  const bool recompute_;
  ParameterSizes input_;  // parameters before the blocks
  const ColumnFootprint frame_;
  const TowerParts parts_;
};

}  // namespace megalith::nn
