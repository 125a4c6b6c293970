// VisionFootprint: memory and work of a vision tower on a rank: patches, positions, and what all towers have
// (tower_footprint.h).
//
// Legend: p patches of this rank, w width of the tower.
#pragma once

#include "megalith/nn/vision/tower_footprint.h"

namespace megalith::nn {

// For the images that RankSizes states. Constant after construction; may be walked several times.
class VisionFootprint final : public TowerFootprint {
 public:
  // `rank` holds the images and the sizes of the language model.
  VisionFootprint(const RankSizes& rank, const VisionShape& shape, const TowerTraining& training);

  void forward(MemoryWalk& memory) const override;
  void backward(MemoryWalk& memory) const override;
  void input_work(WorkMeter& meter) const override;
  const TowerParts& parts() const override { return parts_; }

 private:
  double numbers() const;      // numbers in all patches of this rank
  double pixel_bytes() const;  // bytes of the copy that the patch projection reads

  const RankSizes rank_;  // sizes of the language model
  const VisionShape shape_;
  const TowerParts parts_;
};

}  // namespace megalith::nn
