// Self-attention under tensor and context parallelism: multi-head, grouped-query and multi-query, with optional head
// norms, window, dropout and output gate.
//
// Legend: t tokens, h hidden, n query heads, g key/value heads, d head size; each rank holds n/tp and g/tp heads.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/nn/block_part.h"
#include "megalith/nn/context_parallel/context_parallel.h"
#include "megalith/nn/norm.h"
#include "megalith/nn/tensor_parallel/linear.h"
#include "megalith/parallel/rng_tracker.h"

namespace megalith::nn {

class FootprintScope;
class PartFootprint;

// Sizes of one layer over all tensor-parallel ranks.
struct AttentionShape {
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads
  int64_t head_dim = 0;
  bool qkv_bias = false;
  bool out_bias = false;
  bool output_gate = false;          // q fuses query | gate per head; outputs are multiplied by sigmoid(gate)
  std::optional<NormShape> qk_norm;  // on each query and key head, before the rotation
  int64_t window = 0;                // tokens a query sees, including itself; 0 = all
  double scale = 0;                  // factor of q·k; 0 = 1/sqrt(head_dim)
  double dropout = 0;                // on the attention probabilities
  Init init;                         // for the query/key/value projection
  Init out_init;                     // for the output projection
};

// Key/value heads and tp: if g is a multiple of tp, each rank holds g/tp heads. With fewer heads than ranks (tp a
// multiple of g) the rows of the key and value projections are still split evenly; the ranks exchange their slices and
// each continues with the one head that its query heads use (shared_kv.h). No weight is replicated, so there are no
// copies to keep equal.
class SelfAttention : public BlockPart {
 public:
  // `layer` is its index in a KvCache. Throws ConfigError if the heads cannot be split over tp or cp. `rng` outlives
  // it.
  SelfAttention(const ParameterScope& scope, const AttentionShape& shape, int64_t layer, TensorParallel tp,
                parallel::RngTracker& rng, bool recompute_core, ContextParallel cp = {});

  // x [t, h] (or [t/tp, h]) -> output projection + residual, same shape. `residual` may be undefined. With several
  // context-parallel ranks t counts the tokens of this rank's slice, and attention dropout is not supported in
  // training. A pass with a KvCache has all tokens on every rank.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual, const LayerInput& input) const override;

 private:
  // Attention itself: with the cache in generation, over cp otherwise; [t, n/tp, d], [t, g/tp, d] twice -> [t, n/tp,
  // d].
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
  ops::AttentionPlans* plans_;
};

// Returns the tensors that the fused projection holds: q (with the gates) | k | v.
std::vector<OutputPart> qkv_parts(const AttentionShape& shape);

// Returns the memory and work of the layer, for the planner.
std::unique_ptr<PartFootprint> make_footprint(const FootprintScope& scope, const AttentionShape& shape,
                                              bool recompute_core);
// The same for a layer whose tensors have other names: those that the fused projection holds, and that of the output.
std::unique_ptr<PartFootprint> make_footprint(const FootprintScope& scope, const AttentionShape& shape,
                                              const std::vector<OutputPart>& qkv, const std::string& out);

}  // namespace megalith::nn
