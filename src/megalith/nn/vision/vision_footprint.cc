// The parameters of a tower, in the order in which its constructors create them, and the memory of its passes, which
// mirror vision_tower.cc and model/vision_part.cc. A frozen tower runs without autograd: each block's tensors are gone
// when the next one begins. With recomputation trained blocks keep their input alone.
//
// A merger keeps its input (of its norm), y (the norm's output, input of `up`) and `before` (the input of the
// activation); y, before and the activation's output all have p · w elements.
#include "megalith/nn/vision/vision_footprint.h"

#include <algorithm>

#include "megalith/nn/attention/self_attention.h"
#include "megalith/nn/mlp.h"
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

namespace {

// Patches take the place of tokens, and no rank shares them. Attention counts half of the keys of a causal sequence, so
// one that sees all of `seen` patches counts as one of twice the length.
RankSizes rank_of(const RankSizes& outer, const VisionShape& shape, double seen, bool frozen) {
  return {.t = outer.patches,
          .s = outer.patches,
          .h = static_cast<double>(shape.width),
          .length = 2 * seen,
          .bytes = outer.bytes,
          .dtype = outer.dtype,
          .accumulates = outer.accumulates,
          .frozen = frozen,
          .machinery = outer.machinery};
}

AttentionShape attention_of(const VisionShape& shape) {
  return {.hidden = shape.width,
          .heads = shape.heads,
          .kv_heads = shape.heads,
          .head_dim = shape.head_dim(),
          .qkv_bias = true,
          .out_bias = true};
}

MlpShape mlp_of(const VisionShape& shape) {
  return {.hidden = shape.width,
          .width = shape.mlp_width,
          .gated = shape.gated_mlp,
          .bias = true,
          .activation = shape.activation};
}

double window_patches(const VisionShape& shape) {
  if (shape.window == 0) return 0;
  return static_cast<double>(shape.window_side() * shape.window_side() * shape.merged());
}

}  // namespace

void add_parameters(const FootprintScope& tower, const VisionShape& shape, FrozenVision frozen) {
  ParameterSizes own;
  const FootprintScope scope(tower.rank(), nullptr, own);
  const auto flush = [&](bool trained) {
    for (ParameterSize parameter : std::exchange(own, {}).weights) {
      parameter.trained = trained;
      tower.add(parameter);
    }
  };
  ReplicatedFootprint(scope, shape.patch_pixels(), {{"patch", shape.width}}, shape.patch_bias);
  if (shape.positions > 0) scope.add(shape.positions * shape.width);
  for (int64_t i = 0; i < shape.depth; ++i)
    add_block(scope.child("blocks").child(std::to_string(i)), shape, {{"qkv", 3 * shape.width}});
  for (size_t j = 0; j < shape.deepstack_blocks.size(); ++j)
    add_merger(scope.child("deepstack").child(std::to_string(j)), shape, /*norm_merged=*/true);
  flush(!frozen.tower);
  add_merger(scope.child("merger"), shape, /*norm_merged=*/false);
  flush(!frozen.merger);
}

VisionFootprint::Block::Block(const RankSizes& outer, const VisionShape& shape, double seen, bool frozen)
    : rank(rank_of(outer, shape, seen, frozen)),
      attention_norm({.kind = shape.norm, .size = shape.width}),
      mlp_norm({.kind = shape.norm, .size = shape.width}),
      attention(make_footprint(FootprintScope(rank, nullptr, unused), attention_of(shape), /*recompute_core=*/false)),
      mlp(make_footprint(FootprintScope(rank, nullptr, unused), mlp_of(shape), /*shares_input=*/false)) {}

void VisionFootprint::Block::forward(LayerWalk& walk, bool keep) const {
  attention_norm.forward(walk, keep);
  attention->forward(walk, keep);
  if (!keep) walk.give(rank.stream());  // the output of the norm
  mlp_norm.forward(walk, keep);
  mlp->forward(walk, keep);
  if (!keep) walk.give(2 * rank.stream());  // that of the second one, and the stream between the branches
}

void VisionFootprint::Block::backward(LayerWalk& walk) const {
  mlp->backward(walk, /*wanted=*/true);
  mlp_norm.backward(walk, /*give_stream_grad=*/true, /*give_input=*/true);
  attention->backward(walk, /*wanted=*/true);
  attention_norm.backward(walk, true, true);
}

VisionFootprint::VisionFootprint(const RankSizes& rank, const VisionShape& shape, FrozenVision frozen, bool recompute)
    : rank_(rank),
      shape_(shape),
      frozen_(frozen),
      recompute_(recompute),
      frame_(rank, shape, rank.frame_patches, frozen.tower),
      window_(rank, shape, std::min(rank.frame_patches, window_patches(shape)), frozen.tower) {}

double VisionFootprint::rows_bytes() const {
  return rank_.image_rows * static_cast<double>(mergers()) * rank_.h * rank_.bytes;
}

int64_t VisionFootprint::whole_frame_blocks() const {
  return shape_.window == 0 ? shape_.depth : static_cast<int64_t>(shape_.full_blocks.size());
}

// In fp32 on one rank without windows, the projection reads the pixels as they are.
double VisionFootprint::pixel_bytes() const {
  const bool copied = rank_.machinery.cuda || rank_.bytes != 4 || rank_.tp * rank_.cp > 1 || shape_.window > 0;
  return copied ? rank_.patches * static_cast<double>(shape_.patch_pixels()) * rank_.bytes : 0;
}

double VisionFootprint::merger_forward(LayerWalk& walk, bool keep) const {
  const double stream = frame_.rank.stream();
  const double out = rank_.patches / static_cast<double>(shape_.merged()) * rank_.h * rank_.bytes;
  frame_.attention_norm.forward(walk, keep);  // y
  walk.take(2 * stream);                      // before, and after the activation
  walk.take(out);
  if (!keep || !rank_.machinery.cuda) walk.give(stream);
  if (!keep) walk.give(2 * stream);
  return out;
}

// The gradient of the output exists and stays. Adds that of the input, if it is wanted.
void VisionFootprint::merger_backward(LayerWalk& walk, bool wanted) const {
  const double stream = frame_.rank.stream(), merged = static_cast<double>(shape_.merged() * shape_.width);
  if (!rank_.machinery.cuda) walk.touch(stream, Use::kWorkspace);  // the activation's output, made again
  walk.weight_grad(merged * rank_.h);
  walk.take(stream);
  if (rank_.machinery.cuda) walk.give(stream);  // the activation's output
  walk.take(stream);
  walk.give(stream);
  if (rank_.machinery.cuda)
    walk.give(stream);  // before
  else
    walk.leave_to_graph(stream);
  walk.weight_grad(merged * merged);
  walk.take(stream);
  walk.give(2 * stream + frame_.attention_norm.kept(frame_.rank));  // the gradient of before, y, statistics
  if (!wanted) walk.give(stream);
}

void VisionFootprint::forward(MemoryWalk& memory) const {
  if (!runs()) return;
  const bool trained = !frozen_.tower, keep = trained && !recompute_;
  const double stream = frame_.rank.stream();
  LayerWalk walk(frame_.rank, memory);
  if (rank_.machinery.cuda) walk.touch(4 * rank_.patches * static_cast<double>(shape_.patch_pixels()));
  walk.take(pixel_bytes());
  walk.take(stream);
  // Positions are summed in fp32.
  if (shape_.positions > 0) walk.touch(8 * rank_.patches * static_cast<double>(shape_.width) + stream);
  if (!trained) walk.give(pixel_bytes());
  double outputs = 0;
  for (int64_t i = 0; i < shape_.depth; ++i) {
    const Block& block = block_of(i);
    LayerWalk inner(block.rank, memory);
    block.forward(inner, keep);
    if (!trained) walk.give(stream);  // the block's input
    if (has_merger(i)) outputs += merger_forward(walk, trained);
  }
  outputs += merger_forward(walk, !frozen_.merger || trained);
  if (!trains()) walk.give(stream);
  // Rows of all mergers are stacked, and gathered from all ranks.
  walk.take(outputs);
  walk.give(outputs);
  if (rank_.tp * rank_.cp > 1) {
    walk.take(rows_bytes(), Use::kCommunication);
    walk.give(rows_bytes(), Use::kCommunication);
  }
  walk.give(outputs);
  walk.take(rows_bytes());
}

// Layers that are recomputed keep the deepstack rows as an input, which are a part of all rows.
double VisionFootprint::held_rows() const { return recompute_ && mergers() > 1 ? rows_bytes() : 0; }

void VisionFootprint::release_rows(MemoryWalk& memory) const {
  if (runs()) memory.give(rows_bytes() - held_rows());
}

void VisionFootprint::backward(MemoryWalk& memory) const {
  if (!runs()) return;
  memory.give(held_rows());
  if (!trains()) return;
  const bool trained = !frozen_.tower;
  const double stream = frame_.rank.stream();
  LayerWalk walk(frame_.rank, memory);
  // Gradients of rows and of deepstack rows, which become one.
  walk.touch(rows_bytes());
  const double own = rows_bytes() / static_cast<double>(rank_.tp * rank_.cp);
  if (rank_.tp * rank_.cp > 1) walk.touch(rows_bytes(), Use::kCommunication);
  walk.take(own);
  merger_backward(walk, trained);
  walk.give(stream);  // the merger's input
  for (int64_t i = trained ? shape_.depth - 1 : -1; i >= 0; --i) {
    if (has_merger(i)) {
      merger_backward(walk, true);
      walk.touch(stream);  // the sum of both gradients
      walk.give(stream);
    }
    const Block& block = block_of(i);
    LayerWalk inner(block.rank, memory);
    if (recompute_) block.forward(inner, /*keep=*/true);
    block.backward(inner);
    walk.give(inner.leftover() + (recompute_ ? stream : 0));
  }
  if (trained) {
    if (shape_.positions > 0) walk.touch(8 * rank_.patches * static_cast<double>(shape_.width));
    walk.weight_grad(static_cast<double>(shape_.patch_pixels() * shape_.width));
    walk.give(stream + pixel_bytes());
  }
  walk.give(own + walk.leftover());
}

}  // namespace megalith::nn
