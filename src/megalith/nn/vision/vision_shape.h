// VisionShape: the sizes of a vision tower, which turns images into rows that replace token embeddings.
//
// An image is cut into patches of `patch` x `patch` pixels and `time_patch` frames (a still image repeats its frame). A
// patch is one row of the tower; `merge` x `merge` neighbours become one output row, and so one token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "megalith/ops/norm_rope/activation.h"
#include "megalith/ops/norm_rope/norm.h"

namespace megalith::nn {

// Everything that decides the computation of a tower. Zero and empty mean absent.
struct VisionShape {
  // Blocks, their width, and the width of the output rows, which is that of the language model.
  int64_t depth = 0;
  int64_t width = 0;
  int64_t heads = 0;
  int64_t mlp_width = 0;
  int64_t out_width = 0;

  // Pixels of a patch, and patches of an output row.
  int64_t channels = 3;
  int64_t patch = 14;
  int64_t time_patch = 2;
  int64_t merge = 2;

  // Norms are all of one kind.
  ops::NormKind norm = ops::NormKind::kLayer;
  double norm_epsilon = 1e-6;

  // The MLP of a block; all its products have biases.
  ops::Activation activation = ops::Activation::kQuickGelu;
  bool gated_mlp = false;

  // The bias of the patch projection, and a square table of learned positions that is stretched over each image.
  bool patch_bias = false;
  int64_t positions = 0;      // entries of the table: the square of its side
  double rope_theta = 10000;  // base of the rotation by row and column

  // Windows of `window` x `window` pixels in all blocks but full_blocks, which see a whole frame.
  int64_t window = 0;
  std::vector<int64_t> full_blocks;

  // Blocks after which a merger of its own makes a further output row for each token: entry j belongs to merger j.
  std::vector<int64_t> deepstack_blocks;

  double init_std = 0.02;  // standard deviation of initial weights

  bool operator==(const VisionShape&) const = default;

  // Channels of a head, numbers in a row of pixels, side of the table of positions, and side of a window in output
  // rows.
  int64_t head_dim() const { return width / heads; }
  int64_t patch_pixels() const { return channels * time_patch * patch * patch; }
  int64_t position_side() const;
  int64_t window_side() const { return window / patch / merge; }
  // Patches that one output row covers.
  int64_t merged() const { return merge * merge; }
};

// Returns one message per inconsistent field, each with the allowed values; empty if all is well.
std::vector<std::string> problems(const VisionShape& shape);

// Returns one message per size that is not positive: those of blocks and output, which towers of all kinds have, and
// further ones by name. `tower` is "vision" or "audio".
std::vector<std::string> size_problems(const char* tower, const VisionShape& blocks,
                                       const std::vector<std::pair<const char*, int64_t>>& more);

// The size of an image or video in patches.
struct ImageGrid {
  int64_t time = 1;
  int64_t height = 0;
  int64_t width = 0;
  bool operator==(const ImageGrid&) const = default;

  int64_t patches() const { return time * height * width; }
};

// Returns the rows of `grids`, int64 [images, 3] on the host: time, height, width. An undefined tensor has no rows.
// Throws DataError for sides that are not positive multiples of `merge`.
std::vector<ImageGrid> image_grids(const at::Tensor& grids, int64_t merge);

// Returns the patches of all images together.
int64_t total_patches(const std::vector<ImageGrid>& grids);

}  // namespace megalith::nn
