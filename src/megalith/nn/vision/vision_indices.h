// VisionIndices: everything about a list of images that the blocks of a vision tower need besides pixels: the order of
// rows, rotation, positions, and which rows see each other. Made on the host from the grids alone, once per list.
//
// Legend: p patches of all images, n = p / merge² output rows, d head size.
//
// Pixel rows of an image arrive block by block: time, block row, block column, row in the block, column in the block.
// For 4 x 4 patches and merge 2:
//
//    0  1 |  4  5        patches 0 … 3 become output row 0, 4 … 7 row 1, …
//    2  3 |  6  7
//   ------+------
//    8  9 | 12 13
//   10 11 | 14 15
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "megalith/nn/vision/vision_shape.h"
#include "megalith/ops/norm_rope/rope.h"
#include "megalith/ops/sequence_layout.h"

namespace megalith::nn {

// Tensors are on the tower's device. Absent parts are undefined.
struct VisionIndices {
  // With windows, rows are sorted by window before the first block, so that a window is a contiguous range:
  at::Tensor order;  // int64 [p]: row i of the blocks is pixel row order[i]
  at::Tensor back;   // int64 [n]: output row i is row back[i] of the merger
  // Rotation of each row by the row and the column of its patch, fp32 [p, d/2].
  ops::RopeAngles angles;
  // Rows that see each other: those of one frame, or of one window.
  ops::SequenceLayout frames;
  ops::SequenceLayout windows;
  // The four entries of the table of positions around each patch, int64 [4, p], and their weights, fp32 [4, p].
  at::Tensor taps;
  at::Tensor tap_weights;
};

// Returns the indices of a non-empty list of images. Does not wait for the device.
VisionIndices vision_indices(const VisionShape& shape, const std::vector<ImageGrid>& grids, at::Device device);

}  // namespace megalith::nn
