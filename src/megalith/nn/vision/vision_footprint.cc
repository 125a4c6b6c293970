// Mirrors VisionTower::embed. The patch projection is a convolution in files, and positions are a table: neither gets a
// low-rank update.
#include "megalith/nn/vision/vision_footprint.h"

#include <algorithm>

#include "megalith/nn/tensor_parallel/linear_footprint.h"

namespace megalith::nn {

namespace {

ParameterSizes input_parameters(const RankSizes& outer, const VisionShape& shape, const TowerTraining& training) {
  ParameterSizes input;
  const RankSizes rank = tower_rank(outer, shape, 0, 0, /*frozen=*/false);
  const FootprintScope scope = FootprintScope(rank, training.tower ? training.updates : nullptr, input).child("vision");
  ReplicatedFootprint(scope, shape.patch_pixels(), {{"patch", shape.width}}, shape.patch_bias);
  if (shape.positions > 0) scope.add(shape.positions * shape.width);
  return input;
}

TowerRows rows_of(const RankSizes& rank, const VisionShape& shape) {
  const ImageSizes& images = rank.images;
  const auto window = static_cast<double>(shape.window_side() * shape.window_side() * shape.merged());
  return {.own = images.patches,
          .frame = images.frame_patches,
          .window = std::min(images.frame_patches, window),
          .gathered = images.gathered_rows};
}

TowerKind kind_of(const VisionShape& shape) {
  return {.name = "vision", .qkv = {{"qkv", 3 * shape.width}}, .merger = "merger", .stacks_rows = true};
}

}  // namespace

VisionFootprint::VisionFootprint(const RankSizes& rank, const VisionShape& shape, const TowerTraining& training)
    : rank_(rank),
      shape_(shape),
      parts_(rank, shape, rows_of(rank, shape), kind_of(shape), training, input_parameters(rank, shape, training)) {}

double VisionFootprint::numbers() const { return rank_.images.patches * static_cast<double>(shape_.patch_pixels()); }

// In fp32 on one rank without windows, the projection reads the pixels as they are.
double VisionFootprint::pixel_bytes() const {
  const bool copied = rank_.machinery.cuda || rank_.bytes != 4 || rank_.tp * rank_.cp > 1 || shape_.window > 0;
  return copied ? numbers() * rank_.bytes : 0;
}

void VisionFootprint::forward(MemoryWalk& memory) const {
  if (!parts_.runs()) return;
  const double stream = parts_.stream();
  if (rank_.machinery.cuda) memory.touch(4 * numbers());
  memory.take(pixel_bytes());
  memory.take(stream);
  // Positions are summed in fp32.
  if (shape_.positions > 0) memory.touch(8 * stream / rank_.bytes + stream);
  if (!parts_.trains_input()) memory.give(pixel_bytes());
  parts_.forward(memory);
}

void VisionFootprint::backward(MemoryWalk& memory) const {
  if (!parts_.runs()) return;
  parts_.backward(memory);
  if (!parts_.trains_input()) return;
  const double stream = parts_.stream();
  if (shape_.positions > 0) memory.touch(8 * stream / rank_.bytes);
  LayerWalk(parts_.rank(/*whole_frame=*/true), memory)
      .weight_grad(static_cast<double>(shape_.patch_pixels() * shape_.width));
  memory.give(stream + pixel_bytes());
}

void VisionFootprint::input_work(WorkMeter& meter) const {
  meter.product(rank_.images.patches, static_cast<double>(shape_.width), static_cast<double>(shape_.patch_pixels()));
}

}  // namespace megalith::nn
