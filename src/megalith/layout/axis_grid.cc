// A grid numbers ranks like digits of a number with mixed radix: with sizes tp 2, cp 1, ep 1, dp 2, pp 2 in this
// order, rank = tp + 2 dp + 4 pp. Every question is a division by a stride.
#include "megalith/layout/axis_grid.h"

namespace megalith::layout {

const char* name(Axis axis) {
  static constexpr std::array<const char*, kNumAxes> kNames{"tp", "cp", "ep", "dp", "pp"};
  return kNames[static_cast<size_t>(axis)];
}

AxisGrid::AxisGrid(const Order& order, const Sizes& sizes) : order_(order), sizes_(sizes) {
  // Strides grow along the order: the first axis varies fastest.
  int stride = 1;
  for (Axis axis : order_) {
    strides_[slot(axis)] = stride;
    stride *= size(axis);
  }
}

int AxisGrid::num_ranks() const {
  int product = 1;
  for (int s : sizes_) product *= s;
  return product;
}

int AxisGrid::group_size(AxisSet axes) const {
  int product = 1;
  for (Axis axis : order_) product *= axes.contains(axis) ? size(axis) : 1;
  return product;
}

// The inverse of group_index and place: each axis takes its digit from `place` if it varies inside the group, from
// `index` otherwise.
int AxisGrid::rank_at(AxisSet axes, int index, int place) const {
  int rank = 0;
  for (Axis axis : order_) {
    int& rest = axes.contains(axis) ? place : index;
    rank += rest % size(axis) * stride(axis);
    rest /= size(axis);
  }
  return rank;
}

// As number(), but `axis` counts only within its block.
int AxisGrid::place_in_block(Axis axis, int block_size, int rank) const {
  int place = 0;
  int weight = 1;
  for (Axis a : order_) {
    const int coord = coordinate(rank, a);
    place += (a == axis ? coord % block_size : coord) * weight;
    weight *= a == axis ? block_size : size(a);
  }
  return place;
}

// Reads the digits of the given axes alone, in the order of the grid.
int AxisGrid::number(AxisSet axes, int rank) const {
  int value = 0;
  int weight = 1;
  for (Axis axis : order_) {
    if (!axes.contains(axis)) continue;
    value += coordinate(rank, axis) * weight;
    weight *= size(axis);
  }
  return value;
}

}  // namespace megalith::layout
