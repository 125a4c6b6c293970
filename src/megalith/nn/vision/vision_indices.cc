// One pass over the patches of all images, in the order in which the blocks see them. Without windows that is the order
// of the pixel rows; with windows the output rows of a frame are visited window by window. A frame stays a contiguous
// range either way, because windows do not cross frames.
#include "megalith/nn/vision/vision_indices.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/host_values.h"

namespace megalith::nn {

namespace {

// A coordinate of a patch in the table of positions: the entry before it and the share of the one after it. Corners of
// the image lie on corners of the table.
struct TableCoordinate {
  int64_t before = 0, after = 0;
  float share = 0;  // weight of `after`
};
TableCoordinate table_coordinate(int64_t index, int64_t count, int64_t side) {
  if (count == 1) return {};
  const double at = static_cast<double>(index) * static_cast<double>(side - 1) / static_cast<double>(count - 1);
  const auto before = static_cast<int64_t>(at);
  return {before, std::min(before + 1, side - 1), static_cast<float>(at - static_cast<double>(before))};
}

// Fills flat host arrays, patch by patch.
class IndexBuilder {
 public:
  IndexBuilder(const VisionShape& shape, const std::vector<ImageGrid>& grids)
      : shape_(shape), patches_(total_patches(grids)) {
    order_.reserve(patches_);
    positions_.resize(2 * patches_);
    if (shape.positions > 0) {
      taps_.resize(4 * patches_);
      tap_weights_.resize(4 * patches_);
    }
    for (const ImageGrid& grid : grids) add_image(grid);
  }

  VisionIndices finish(at::Device device) const {
    const at::NoGradGuard no_grad;
    VisionIndices indices{.frames = ops::SequenceLayout::packed(frames_)};
    const auto copied = [device](const auto& values, at::IntArrayRef shape, at::ScalarType type) {
      return ops::to_device(
          at::from_blob(const_cast<void*>(static_cast<const void*>(values.data())), shape, at::TensorOptions(type))
              .clone(),
          device);
    };
    if (shape_.window > 0) {
      indices.windows = ops::SequenceLayout::packed(windows_);
      indices.order = copied(order_, {patches_}, at::kLong);
      indices.back = copied(inverse_rows(), {patches_ / shape_.merged()}, at::kLong);
    }
    if (shape_.positions > 0) {
      indices.taps = copied(taps_, {4, patches_}, at::kLong);
      indices.tap_weights = copied(tap_weights_, {4, patches_}, at::kFloat);
    }
    indices.angles = angles(copied(positions_, {2, patches_}, at::kFloat), device);
    return indices;
  }

 private:
  void add_image(const ImageGrid& grid) {
    const int64_t rows = grid.height / shape_.merge, columns = grid.width / shape_.merge;
    for (int64_t frame = 0; frame < grid.time; ++frame) {
      if (shape_.window > 0)
        add_windows(grid, rows, columns);
      else
        add_rectangle(grid, 0, rows, 0, columns);
      frames_.push_back(grid.height * grid.width);
      first_row_ += rows * columns;
    }
  }

  // Windows at the right and lower border are smaller.
  void add_windows(const ImageGrid& grid, int64_t rows, int64_t columns) {
    const int64_t side = shape_.window_side();
    for (int64_t row = 0; row < rows; row += side)
      for (int64_t column = 0; column < columns; column += side) {
        const int64_t end_row = std::min(row + side, rows), end_column = std::min(column + side, columns);
        add_rectangle(grid, row, end_row, column, end_column);
        windows_.push_back((end_row - row) * (end_column - column) * shape_.merged());
      }
  }

  // Output rows [begin_row, end_row) x [begin_column, end_column) of the current frame.
  void add_rectangle(const ImageGrid& grid, int64_t begin_row, int64_t end_row, int64_t begin_column,
                     int64_t end_column) {
    const int64_t merge = shape_.merge, columns = grid.width / merge;
    for (int64_t row = begin_row; row < end_row; ++row)
      for (int64_t column = begin_column; column < end_column; ++column) {
        const int64_t first_patch = (first_row_ + row * columns + column) * shape_.merged();
        for (int64_t i = 0; i < shape_.merged(); ++i)
          add_patch(grid, first_patch + i, row * merge + i / merge, column * merge + i % merge);
      }
  }

  void add_patch(const ImageGrid& grid, int64_t pixel_row, int64_t row, int64_t column) {
    const auto at = static_cast<int64_t>(order_.size());
    order_.push_back(pixel_row);
    positions_[at] = static_cast<float>(row);
    positions_[patches_ + at] = static_cast<float>(column);
    if (shape_.positions == 0) return;
    const int64_t side = shape_.position_side();
    const TableCoordinate y = table_coordinate(row, grid.height, side), x = table_coordinate(column, grid.width, side);
    const auto tap = [&](int64_t corner, int64_t table_row, int64_t table_column, float weight) {
      taps_[corner * patches_ + at] = table_row * side + table_column;
      tap_weights_[corner * patches_ + at] = weight;
    };
    tap(0, y.before, x.before, (1 - y.share) * (1 - x.share));
    tap(1, y.before, x.after, (1 - y.share) * x.share);
    tap(2, y.after, x.before, y.share * (1 - x.share));
    tap(3, y.after, x.after, y.share * x.share);
  }

  // The place of each output row among the sorted ones. The patches of an output row stay together.
  std::vector<int64_t> inverse_rows() const {
    std::vector<int64_t> back(order_.size() / shape_.merged());
    for (size_t i = 0; i < back.size(); ++i)
      back[order_[i * shape_.merged()] / shape_.merged()] = static_cast<int64_t>(i);
    return back;
  }

  // The first half of a head's frequencies turns with the row, the second half with the column.
  ops::RopeAngles angles(const at::Tensor& positions, at::Device device) const {
    const std::vector<float> theta =
        ops::rope_frequencies({.rotary_dim = shape_.head_dim() / 2, .theta = shape_.rope_theta}, 0);
    const at::Tensor frequencies = ops::to_device(at::tensor(theta), device);
    const at::Tensor angle =
        at::cat({at::outer(positions[0], frequencies), at::outer(positions[1], frequencies)}, 1);  // [p, d/2]
    return {.cos = angle.cos(), .sin = angle.sin()};
  }

  const VisionShape& shape_;
  const int64_t patches_;
  int64_t first_row_ = 0;  // output rows before the current frame
  std::vector<int64_t> order_;
  std::vector<float> positions_;  // [2, p]: rows, then columns
  std::vector<int64_t> taps_;
  std::vector<float> tap_weights_;
  std::vector<int64_t> frames_, windows_;  // lengths
};

}  // namespace

VisionIndices vision_indices(const VisionShape& shape, const std::vector<ImageGrid>& grids, at::Device device) {
  check(!grids.empty(), "a vision tower was asked for the indices of no images");
  return IndexBuilder(shape, grids).finish(device);
}

}  // namespace megalith::nn
