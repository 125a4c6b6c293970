// Memory of linear layers: ColumnFootprint mirrors ColumnParallelLinear, RowFootprint RowParallelLinear (linear.h), and
// ReplicatedFootprint ReplicatedLinear. They include a low-rank update if the weight gets one.
//
// Legend: t tokens, s tokens of a rank's share, in and out columns on this rank.
#pragma once

#include <string>
#include <vector>

#include "megalith/nn/footprint/footprint_scope.h"
#include "megalith/nn/footprint/layer_walk.h"
#include "megalith/nn/tensor_parallel/linear.h"

namespace megalith::nn {

// Memory of a column-parallel product; mirrors column_linear.
class ColumnFootprint {
 public:
  // Records the parameters; arguments as those of ColumnParallelLinear.
  ColumnFootprint(const FootprintScope& scope, int64_t in, const std::vector<OutputPart>& out, bool bias);
  // For the head, whose parameter is recorded elsewhere, without an update. `out` counts columns on this rank.
  ColumnFootprint(double in, double out) : in_(in), out_(out), is_head_(true) {}

  // Columns on this rank.
  double in() const { return in_; }
  double out() const { return out_; }
  // Whether backward reads the input.
  bool keeps_input(const RankSizes& rank) const { return !rank.frozen || update_.any(); }
  // Whether tokens travel in slices beside the product; see slices_for in linear_function.cc.
  bool multiplies_slices(const RankSizes& rank) const;

  // [s, in] -> [t, out]: adds the output; the input stays the caller's.
  void forward(LayerWalk& walk, bool keep) const;
  // Frees the gradient [t, out] and the kept input [s, in]; adds the gradient [s, in] if it is `wanted`.
  void backward(LayerWalk& walk, bool wanted = true) const;

 private:
  double in_, out_;
  bool is_head_ = false;
  bool quantized_ = false;
  UpdateSize update_;
};

// The fate of a row-parallel layer's input [t, in] in backward.
struct RowInput {
  bool give = false;       // it is freed; false if something else holds it
  double made_again = 0;   // bytes of an input that was not kept and is recomputed for the weight gradient
  bool in_slices = false;  // its tokens are in the order of slices
};

// Memory of a row-parallel product; mirrors row_linear.
class RowFootprint {
 public:
  // Records the parameters; arguments as those of RowParallelLinear.
  RowFootprint(const FootprintScope& scope, const std::string& name, int64_t in, int64_t out, bool bias);

  double in() const { return in_; }
  // Whether tokens travel in slices beside the product.
  bool multiplies_slices(const RankSizes& rank) const;
  // Whether backward reads the input: a frozen weight without an update does not.
  bool keeps_input(const RankSizes& rank) const { return !rank.frozen || update_.any(); }

  // [t, in] -> [s, h] on the residual stream.
  void forward(LayerWalk& walk, bool keep) const;
  // Adds the gradient [t, in]. The gradient of the stream stays, because it is also that of the residual.
  void backward(LayerWalk& walk, const RowInput& input) const;

 private:
  // Whether the gradient of the output travels in slices.
  bool gathers_in_slices(const RankSizes& rank) const;

  double in_, out_;
  bool quantized_ = false;
  UpdateSize update_;
};

// Counts only the parameters; the layer around it counts the memory of such a small product.
class ReplicatedFootprint {
 public:
  // Records the parameters; arguments as those of ReplicatedLinear.
  ReplicatedFootprint(const FootprintScope& scope, int64_t in, const std::vector<OutputPart>& out, bool bias);
  double out() const { return out_; }

 private:
  double out_;
};

}  // namespace megalith::nn
