// Gated delta net (Qwen3-Next): a layer in place of attention whose state does not grow with the sequence.
//
//   x ─► in ─┬─ q | k | v ─► causal convolution ─► SiLU ─► q, k normalised ─► delta rule ─► norm · SiLU(z) ─► out
//            ├─ z, the gate of the output ────────────────────────────────────────────────────┘
//            └─ b, a: how much is corrected, how much is forgotten
//
// Key heads are split over tensor-parallel ranks, each with the value heads that it serves.
//
// Legend: t tokens, h hidden, m key heads, n value heads (a multiple of m), d size of a key, e size of a value.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "megalith/nn/block_part.h"
#include "megalith/nn/norm.h"
#include "megalith/nn/tensor_parallel/linear.h"

namespace megalith::nn {

class FootprintScope;
class PartFootprint;

struct DeltaNetShape {
  int64_t hidden = 0;
  int64_t key_heads = 0;    // m
  int64_t value_heads = 0;  // n
  int64_t key_dim = 0;      // d
  int64_t value_dim = 0;    // e
  int64_t conv_kernel = 4;  // tokens that the convolution sees
  double norm_epsilon = 1e-6;
  Init init;      // of the projection in and the convolution
  Init out_init;  // of the projection out
};

class GatedDeltaNet : public BlockPart {
 public:
  // `layer`: its place in a KvCache. Throws ConfigError when key heads do not divide by tp.
  GatedDeltaNet(const ParameterScope& scope, const DeltaNetShape& shape, int64_t layer, TensorParallel tp);

  // x [t, h] (or [t/tp, h]) -> output projection + residual, of the same shape. `residual` undefined: none. State and
  // convolution restart with each sequence.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual, const LayerInput& input) const override;

 private:
  // What the projection in gives a rank: m/tp, n/tp heads.
  struct Projected {
    at::Tensor qkv;   // [t, m d + m d + n e], all queries, all keys, all values
    at::Tensor z;     // [t, n, e]
    at::Tensor b, a;  // [t, n]
  };
  Projected project(const at::Tensor& x) const;
  at::Tensor convolve(const at::Tensor& qkv, const LayerInput& input) const;
  // -> [t, n, e]
  at::Tensor core(const at::Tensor& qkv, const at::Tensor& b, const at::Tensor& a, const LayerInput& input) const;

  DeltaNetShape shape_;
  int64_t layer_;
  int64_t key_heads_, value_heads_;  // of this rank
  ColumnParallelLinear in_;  // as Qwen stores it, by key head: q | k | its v's | its z's; then its b's | its a's
  Parameter* conv_;          // [channels, kernel]
  Parameter* a_log_;         // [n]
  Parameter* dt_bias_;       // [n]
  Norm norm_;
  RowParallelLinear out_;
};

// The outputs of the projection in: queries, keys, values and gates | both numbers of each value head.
std::vector<OutputPart> in_parts(const DeltaNetShape& shape);

// Multiplications for each token, as FLOPs are counted (layout/model_flops.h).
double multiplications(const DeltaNetShape& shape);

// What it needs, for the planner.
std::unique_ptr<PartFootprint> make_footprint(const FootprintScope& scope, const DeltaNetShape& shape);

}  // namespace megalith::nn
