// Numbers ranks along the parallel axes: the arithmetic under every process group.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace megalith::layout {

// The parallel axes. In the expert grid kTp stands for expert tensor parallelism and kDp for expert data parallelism.
enum class Axis : int { kTp, kCp, kEp, kDp, kPp };
inline constexpr int kNumAxes = 5;
inline constexpr std::array<Axis, kNumAxes> kAllAxes{Axis::kTp, Axis::kCp, Axis::kEp, Axis::kDp, Axis::kPp};

const char* name(Axis axis);  // "tp", "cp", "ep", "dp", "pp"

// A set of axes: the ones that vary inside a group.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  // A set of axes in one byte: {Axis::kTp, Axis::kPp}.
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (Axis axis : axes) bits_ |= bit(axis);
  }
  constexpr bool contains(Axis axis) const { return (bits_ & bit(axis)) != 0; }
  constexpr AxisSet complement() const {
    AxisSet rest;
    rest.bits_ = static_cast<uint8_t>(~bits_);
    return rest;
  }

 private:
  static constexpr uint8_t bit(Axis axis) { return static_cast<uint8_t>(1U << static_cast<int>(axis)); }
  uint8_t bits_ = 0;
};

// A mixed-radix numbering of ranks: rank = c0 + s0*c1 + s0*s1*c2 + …, the first axis of the order varying fastest.
//
// A set of axes divides the ranks into groups: the members of a group differ only in those axes and are numbered by
// `place`, the groups by `index`; both count the faster axis first. So places and indices ascend with the global rank,
// and every question below is answered by at most five divisions, however many ranks there are.
//
// Example: order tp-cp-ep-dp-pp with tp 2, dp 2, pp 2 (others 1) has strides tp 1, dp 2, pp 4. Rank 5 is tp 1, dp 0,
// pp 1; its group along {dp} is {5, 7}, of which it is place 0, and the group's index is 3 of 4.
//
// Constant after construction. Arguments are not checked: RankGrid does that.
class AxisGrid {
 public:
  using Order = std::array<Axis, kNumAxes>;  // every axis once, fastest first
  using Sizes = std::array<int, kNumAxes>;   // by axis, each >= 1

  // `order` lists every axis once, fastest first; sizes are indexed by axis.
  AxisGrid(const Order& order, const Sizes& sizes);

  // Size of an axis, ranks between two neighbors along it, and a rank's position on it.
  int size(Axis axis) const { return sizes_[slot(axis)]; }
  int stride(Axis axis) const { return strides_[slot(axis)]; }
  int coordinate(int rank, Axis axis) const { return rank / stride(axis) % size(axis); }
  int num_ranks() const;

  // `axes` vary inside the group; `index` numbers the groups and `place` the members of one.
  int group_size(AxisSet axes) const;
  int group_index(AxisSet axes, int rank) const { return number(axes.complement(), rank); }
  int place(AxisSet axes, int rank) const { return number(axes, rank); }
  int rank_at(AxisSet axes, int index, int place) const;

  // Returns the place among the ranks whose `axis` lies in the same block of `block_size` neighboring coordinates.
  int place_in_block(Axis axis, int block_size, int rank) const;

 private:
  static size_t slot(Axis axis) { return static_cast<size_t>(axis); }
  // Returns the coordinates along `axes` as one number, the faster axis first.
  int number(AxisSet axes, int rank) const;

  Order order_;
  Sizes sizes_;
  Sizes strides_{};
};

}  // namespace megalith::layout
