// Gated delta net (Qwen3-Next): a replacement for attention whose state does not grow with the sequence.
//
//   x ─► in ─┬─ q | k | v ─► causal convolution ─► SiLU ─► q, k normalized ─► delta rule ─► norm · SiLU(z) ─► out
//            ├─ z, the gate of the output ────────────────────────────────────────────────────┘
//            └─ b, a: how strongly each step corrects the state, and how much of it decays
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

// Sizes of one layer over all tensor-parallel ranks.
struct DeltaNetShape {
  int64_t hidden = 0;
  int64_t key_heads = 0;    // m
  int64_t value_heads = 0;  // n
  int64_t key_dim = 0;      // d
  int64_t value_dim = 0;    // e
  int64_t conv_kernel = 4;  // tokens that the convolution sees
  double norm_epsilon = 1e-6;
  Init init;      // for the input projection and the convolution
  Init out_init;  // for the output projection
};

// Its parameters are in (fused), conv, a_log, dt_bias, norm and out. Forward and backward have the collectives of a
// column- and a row-parallel layer, none in between.
class GatedDeltaNet : public BlockPart {
 public:
  // `layer` is its index in a KvCache. Throws ConfigError if tp does not divide the key heads.
  GatedDeltaNet(const ParameterScope& scope, const DeltaNetShape& shape, int64_t layer, TensorParallel tp);

  // x [t, h] (or [t/tp, h]) -> output projection + residual, same shape. `residual` may be undefined. State and
  // convolution restart with each sequence.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual, const LayerInput& input) const override;

 private:
  // Output of the input projection on one rank, with m/tp key heads and n/tp value heads.
  struct Projected {
    at::Tensor qkv;   // [t, m d + m d + n e], all queries, all keys, all values
    at::Tensor z;     // [t, n, e]
    at::Tensor b, a;  // [t, n]
  };
  // x [t, h] or [t/tp, h]; gathers tokens with sequence parallelism.
  Projected project(const at::Tensor& x) const;
  // Causal convolution and SiLU of [t, channels]; in generation it continues from the cached inputs.
  at::Tensor convolve(const at::Tensor& qkv, const LayerInput& input) const;
  // -> [t, n, e]
  at::Tensor core(const at::Tensor& qkv, const at::Tensor& b, const at::Tensor& a, const LayerInput& input) const;

  DeltaNetShape shape_;
  int64_t layer_;
  int64_t key_heads_, value_heads_;  // heads on this rank
  ColumnParallelLinear in_;          // in Qwen's order, per key head: q | k | its v's | its z's; then its b's | its a's
  Parameter* conv_;                  // [channels, kernel]
  Parameter* a_log_;                 // [n]
  Parameter* dt_bias_;               // [n]
  Norm norm_;
  RowParallelLinear out_;
};

// Returns the tensors that the input projection fuses: queries, keys, values and gates | b and a of each value head.
std::vector<OutputPart> in_parts(const DeltaNetShape& shape);

// Returns the multiplications per token, as FLOPs are counted in layout/model_flops.h.
double multiplications(const DeltaNetShape& shape);

// Returns the memory and work of the layer, for the planner.
std::unique_ptr<PartFootprint> make_footprint(const FootprintScope& scope, const DeltaNetShape& shape);

}  // namespace megalith::nn
