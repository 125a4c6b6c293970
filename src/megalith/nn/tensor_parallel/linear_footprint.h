// What linear layers need: ColumnFootprint follows ColumnParallelLinear and RowFootprint RowParallelLinear (linear.h),
// ReplicatedFootprint ReplicatedLinear. They count an update of low rank where the weight gets one.
//
// Legend: t tokens, s those of a rank's share, in and out columns on this rank.
#pragma once

#include <string>
#include <vector>

#include "megalith/nn/footprint/footprint_scope.h"
#include "megalith/nn/footprint/layer_walk.h"
#include "megalith/nn/tensor_parallel/linear.h"

namespace megalith::nn {

class ColumnFootprint {
 public:
  // Records the parameters; arguments as those of ColumnParallelLinear.
  ColumnFootprint(const FootprintScope& scope, int64_t in, const std::vector<OutputPart>& out, bool bias);
  // A weight whose parameter is recorded elsewhere, without an update. `out`: on this rank.
  ColumnFootprint(double in, double out) : in_(in), out_(out) {}

  double in() const { return in_; }
  double out() const { return out_; }
  // Whether backward reads the input.
  bool keeps_input(const RankSizes& rank) const { return !rank.frozen || update_.any(); }

  // [s, in] -> [t, out]: the output comes, the input stays the caller's.
  void forward(LayerWalk& walk, bool keep) const;
  // The gradient [t, out] and the kept input [s, in] go; the gradient [s, in] comes where it is wanted.
  void backward(LayerWalk& walk, bool wanted = true) const;

 private:
  double in_, out_;
  UpdateSize update_;
};

// What happens to the kept input [t, in] of a row-parallel layer in backward.
struct RowInput {
  bool give = false;      // it goes; false where others hold it
  double made_again = 0;  // bytes: it was not kept, and is computed again for the weight gradient
};

class RowFootprint {
 public:
  // Records the parameters; arguments as those of RowParallelLinear.
  RowFootprint(const FootprintScope& scope, const std::string& name, int64_t in, int64_t out, bool bias);

  double in() const { return in_; }
  bool keeps_input(const RankSizes& rank) const { return !rank.frozen || update_.any(); }

  // [t, in] -> [s, h] on the residual stream.
  void forward(LayerWalk& walk, bool keep) const;
  // The gradient of the stream stays (it is the residual's, too); the gradient [t, in] comes.
  void backward(LayerWalk& walk, const RowInput& input) const;

 private:
  double in_, out_;
  UpdateSize update_;
};

// Only its parameters: what such a small product holds is counted by the layer around it.
class ReplicatedFootprint {
 public:
  // Records the parameters; arguments as those of ReplicatedLinear.
  ReplicatedFootprint(const FootprintScope& scope, int64_t in, const std::vector<OutputPart>& out, bool bias);
  double out() const { return out_; }

 private:
  double out_;
};

}  // namespace megalith::nn
