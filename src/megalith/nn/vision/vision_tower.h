// VisionTower: a vision transformer that turns patches of images into rows of the language model's width.
//
//   pixels [p, c] ─ patch ─► (+ positions) ─► block ─► … ─► block ─► merger ─► rows [n, h]
//                                               └─ after some blocks: merger of its own ─► deepstack rows [n, h]
//
// A block is attention and MLP on a residual stream; attention is not causal, and a row sees those of its frame, or of
// its window. Covers the towers of Qwen2-VL, Qwen2.5-VL (windows), Qwen3-VL (learned positions, deepstack) and Qwen3.5.
//
// Legend: p patches of all images, c numbers of a patch, n = p / merge² output rows, w width, h output width.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "megalith/nn/norm.h"
#include "megalith/nn/parameter/parameter.h"
#include "megalith/nn/tensor_parallel/replicated_linear.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"
#include "megalith/nn/vision/vision_indices.h"
#include "megalith/nn/vision/vision_shape.h"
#include "megalith/parallel/rng_tracker.h"

namespace megalith::nn {

// One block.
class VisionBlock {
 public:
  // `qkv` lists the tensors that the projection to queries, keys and values holds, 3w rows together.
  VisionBlock(const ParameterScope& scope, const VisionShape& shape, const TensorParallel& tp,
              const std::vector<OutputPart>& qkv);

  // x [p, w] -> [p, w]; `sequences` says which rows see each other. Undefined `angles` mean no rotation.
  at::Tensor forward(const at::Tensor& x, const ops::RopeAngles& angles, const ops::SequenceLayout& sequences) const;
  // Returns whether any of its parameters, or an update of them, is trained.
  bool trains() const;
  // Returns the random numbers that dropout of an update draws; nullptr without one.
  parallel::RngTracker* random_numbers() const;

 private:
  VisionShape shape_;
  Norm attention_norm_;
  ReplicatedLinear qkv_, proj_;
  Norm mlp_norm_;
  ReplicatedLinear up_, down_;
  ops::AttentionPlans* plans_;
};

// Norm, merge² rows side by side, and a plain MLP with GELU. The norm is over single rows, or over merged ones.
class VisionMerger {
 public:
  VisionMerger(const ParameterScope& scope, const VisionShape& shape, bool norm_merged, const TensorParallel& tp);

  // x [p, w] -> [n, h]
  at::Tensor forward(const at::Tensor& x) const;
  // Returns whether any of its parameters, or an update of them, is trained.
  bool trains() const;

 private:
  int64_t merged_width_;  // merge² w
  bool norm_merged_;
  Norm norm_;
  ReplicatedLinear up_, down_;
};

// The output of a tower: one row per token, in the order of the images.
struct VisionRows {
  at::Tensor rows;                    // [n, h]
  std::vector<at::Tensor> deepstack;  // [n, h] each, in the order of the blocks that they come from
};

// Parameters are replicated over the tensor-parallel group, whose ranks compute different images: gradients are partial
// and summed over the group at the end of the step. Used by one thread per rank.
//
// Names: patch, positions, blocks.N.{attention_norm, attention.qkv, attention.proj, mlp_norm, mlp.gate | mlp.up,
// mlp.down}, merger.{norm, up, down}, deepstack.J.{norm, up, down}.
class VisionTower {
 public:
  // Throws ConfigError for sizes that do not fit together.
  VisionTower(const ParameterScope& scope, const VisionShape& shape, TensorParallel tp);

  // pixels [p, c], of any floating type, on the host or the tower's device; `grids` is not empty and has p patches.
  // With `recompute`, trained blocks keep their input alone.
  VisionRows forward(const at::Tensor& pixels, const std::vector<ImageGrid>& grids, bool recompute = false) const;

  const VisionShape& shape() const { return shape_; }
  // Returns whether anything in it is trained, so that its rows require a gradient.
  bool trains() const;
  // Returns the dtype and device of its rows.
  at::TensorOptions options() const { return patch_->weight().value.options(); }

 private:
  // Indices of the most recent lists of images, newest first. Micro-batches of equal images share them.
  using IndicesPtr = std::shared_ptr<const VisionIndices>;
  struct Known {
    std::vector<ImageGrid> grids;
    IndicesPtr indices;
  };
  IndicesPtr indices_of(const std::vector<ImageGrid>& grids) const;
  at::Tensor embed(const at::Tensor& pixels, const VisionIndices& indices) const;  // -> [p, w]

  VisionShape shape_;
  std::optional<ReplicatedLinear> patch_;
  Parameter* positions_ = nullptr;  // [positions, w]
  std::vector<std::unique_ptr<VisionBlock>> blocks_;
  std::vector<std::unique_ptr<VisionMerger>> deepstack_;  // by entry of deepstack_blocks
  std::optional<VisionMerger> merger_;
  mutable std::deque<Known> known_;
};

// Returns the tensors that the first product of a block's MLP fuses: gate | up, or up alone.
std::vector<OutputPart> vision_up_parts(const VisionShape& shape);

}  // namespace megalith::nn
