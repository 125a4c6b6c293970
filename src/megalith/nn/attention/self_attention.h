// Self-attention under tensor and context parallelism: multi-head and grouped-query.
//
// Legend: t tokens, h hidden, n query heads, g key/value heads, d head size; on a rank n/tp and g/tp of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "megalith/nn/block_part.h"
#include "megalith/nn/context_parallel/context_parallel.h"
#include "megalith/nn/norm.h"
#include "megalith/nn/tensor_parallel/linear.h"
#include "megalith/parallel/rng_tracker.h"

namespace megalith::nn {

class FootprintScope;
class PartFootprint;

struct AttentionShape {
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads
  int64_t head_dim = 0;
  bool qkv_bias = false;
  bool out_bias = false;
  bool output_gate = false;          // the rows of q are, head by head, query | gate; outputs times sigmoid(gate)
  std::optional<NormShape> qk_norm;  // on each query and key head, before the rotation
  int64_t window = 0;                // tokens a query sees, itself included; 0: all
  double scale = 0;                  // of q·k; 0: 1/sqrt(head_dim)
  double dropout = 0;                // on the attention probabilities
  Init init;                         // of the query/key/value projection
  Init out_init;                     // of the output projection
};

// Key/value heads and tp: with g a multiple of tp each rank holds g/tp heads. With fewer heads than ranks (tp a
// multiple of g) the rows of the key and value projections are still dealt evenly; the ranks exchange the parts and
// each goes on with the one head that its query heads use. No weight exists twice, so nothing needs to be kept equal.
class SelfAttention : public BlockPart {
 public:
  // `layer`: its place in a KvCache. Throws ConfigError when heads do not divide by tp, or cannot be dealt over cp.
  // `rng` outlives it.
  SelfAttention(const ParameterScope& scope, const AttentionShape& shape, int64_t layer, TensorParallel tp,
                parallel::RngTracker& rng, bool recompute_core, ContextParallel cp = {});

  // x [t, h] (or [t/tp, h]) -> output projection + residual, of the same shape. `residual` undefined: none. With
  // several context-parallel ranks t is the slice's, and there is no attention dropout in training. A pass with a
  // KvCache has all tokens on every rank.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual, const LayerInput& input) const override;

 private:
  at::Tensor core(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const LayerInput& input) const;

  AttentionShape shape_;
  int64_t layer_;
  TensorParallel tp_;
  ContextParallel cp_;
  parallel::RngTracker& rng_;
  bool recompute_core_;
  ops::QkvHeads local_;  // heads of this rank
  ColumnParallelLinear qkv_;
  std::optional<Norm> q_norm_, k_norm_;
  RowParallelLinear out_;
};

// The outputs of the fused projection: q (with the gates) | k | v.
std::vector<OutputPart> qkv_parts(const AttentionShape& shape);

// What it needs, for the planner.
std::unique_ptr<PartFootprint> make_footprint(const FootprintScope& scope, const AttentionShape& shape,
                                              bool recompute_core);

}  // namespace megalith::nn
