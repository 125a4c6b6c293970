// The parameters of a tower, in the order in which its constructors create them. Its activations depend on the images
// of a micro-batch, of which a plan knows nothing.
#include "megalith/nn/footprint/footprint_scope.h"
#include "megalith/nn/norm_footprint.h"
#include "megalith/nn/tensor_parallel/linear_footprint.h"
#include "megalith/nn/vision/vision_tower.h"

namespace megalith::nn {

namespace {

void add_merger(const FootprintScope& scope, const VisionShape& shape, bool norm_merged) {
  const int64_t merged_width = shape.merged() * shape.width;
  NormFootprint(scope.child("norm"), {.kind = shape.norm, .size = norm_merged ? merged_width : shape.width});
  ReplicatedFootprint(scope, merged_width, {{"up", merged_width}}, true);
  ReplicatedFootprint(scope, merged_width, {{"down", shape.out_width}}, true);
}

}  // namespace

void add_parameters(const FootprintScope& scope, const VisionShape& shape) {
  ReplicatedFootprint(scope, shape.patch_pixels(), {{"patch", shape.width}}, shape.patch_bias);
  if (shape.positions > 0) scope.add(shape.positions * shape.width);
  const NormShape norm{.kind = shape.norm, .size = shape.width};
  for (int64_t i = 0; i < shape.depth; ++i) {
    const FootprintScope block = scope.child("blocks").child(std::to_string(i));
    const FootprintScope attention = block.child("attention"), mlp = block.child("mlp");
    NormFootprint(block.child("attention_norm"), norm);
    ReplicatedFootprint(attention, shape.width, {{"qkv", 3 * shape.width}}, true);
    ReplicatedFootprint(attention, shape.width, {{"proj", shape.width}}, true);
    NormFootprint(block.child("mlp_norm"), norm);
    ReplicatedFootprint(mlp, shape.width, vision_up_parts(shape), true);
    ReplicatedFootprint(mlp, shape.mlp_width, {{"down", shape.width}}, true);
  }
  for (size_t j = 0; j < shape.deepstack_blocks.size(); ++j)
    add_merger(scope.child("deepstack").child(std::to_string(j)), shape, /*norm_merged=*/true);
  add_merger(scope.child("merger"), shape, /*norm_merged=*/false);
}

}  // namespace megalith::nn
