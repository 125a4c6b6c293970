// The parameters of a tower, in the order in which its constructors create them. Its activations depend on the images
// of a micro-batch, of which a plan knows nothing.
#include "megalith/nn/footprint/footprint_scope.h"
#include "megalith/nn/norm_footprint.h"
#include "megalith/nn/tensor_parallel/linear_footprint.h"
#include "megalith/nn/vision/vision_tower.h"

namespace megalith::nn {

void add_merger(const FootprintScope& scope, const VisionShape& shape, bool norm_merged) {
  const int64_t merged_width = shape.merged() * shape.width;
  NormFootprint(scope.child("norm"), {.kind = shape.norm, .size = norm_merged ? merged_width : shape.width});
  ReplicatedFootprint(scope, merged_width, {{"up", merged_width}}, true);
  ReplicatedFootprint(scope, merged_width, {{"down", shape.out_width}}, true);
}

void add_block(const FootprintScope& scope, const VisionShape& shape, const std::vector<OutputPart>& qkv) {
  const FootprintScope attention = scope.child("attention"), mlp = scope.child("mlp");
  const NormShape norm{.kind = shape.norm, .size = shape.width};
  NormFootprint(scope.child("attention_norm"), norm);
  ReplicatedFootprint(attention, shape.width, qkv, true);
  ReplicatedFootprint(attention, shape.width, {{"proj", shape.width}}, true);
  NormFootprint(scope.child("mlp_norm"), norm);
  ReplicatedFootprint(mlp, shape.width, vision_up_parts(shape), true);
  ReplicatedFootprint(mlp, shape.mlp_width, {{"down", shape.width}}, true);
}

void add_parameters(const FootprintScope& scope, const VisionShape& shape) {
  ReplicatedFootprint(scope, shape.patch_pixels(), {{"patch", shape.width}}, shape.patch_bias);
  if (shape.positions > 0) scope.add(shape.positions * shape.width);
  for (int64_t i = 0; i < shape.depth; ++i)
    add_block(scope.child("blocks").child(std::to_string(i)), shape, {{"qkv", 3 * shape.width}});
  for (size_t j = 0; j < shape.deepstack_blocks.size(); ++j)
    add_merger(scope.child("deepstack").child(std::to_string(j)), shape, /*norm_merged=*/true);
  add_merger(scope.child("merger"), shape, /*norm_merged=*/false);
}

}  // namespace megalith::nn
