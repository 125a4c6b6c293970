// Gated delta net (Qwen3-Next, Qwen3.5): a replacement for attention whose state does not grow with the sequence.
//
//   x ─► in ─┬─ q | k | v ─► causal convolution ─► SiLU ─► q, k normalized ─► delta rule ─► norm · SiLU(z) ─► out
//            ├─ z, the gate of the output ────────────────────────────────────────────────────┘
//            └─ b, a: how strongly each step corrects the state, and how much of it decays
//
// Key heads are split over tensor-parallel ranks, each with the value heads that it serves. The state runs through a
// whole sequence, so context-parallel ranks trade tokens for heads (Ulysses) between the projections, whatever
// cp_comm_type is: a rank mixes all tokens of 1/cp of its heads. Megatron-LM does the same.
//
// Legend: t tokens of this rank's slice, h hidden, m key heads, n value heads (a multiple of m), d size of a key, e
// size of a value, cp context-parallel ranks, T = t·cp tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/comm/group.h"
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
  bool apart = false;  // q, k, v, z, b and a are tensors of their own (Qwen3.5), not dealt by key head (Qwen3-Next)
  double norm_epsilon = 1e-6;
  Init init;      // for the input projection and the convolution
  Init out_init;  // for the output projection
};

// Its parameters are in (fused), conv, a_log, dt_bias, norm and out. Forward and backward have the collectives of a
// column- and a row-parallel layer, and in between two all-to-alls over context-parallel ranks, if there are several.
// All context-parallel ranks hold all parameters of their tensor-parallel rank, but each uses only its heads' rows of
// conv, a_log and dt_bias: the other rows get a gradient of 0, and the sum over the ranks is the whole gradient.
class GatedDeltaNet : public BlockPart {
 public:
  // `layer` is its index in a KvCache. `cp` are the ranks that hold the other tokens of the sequences. Throws
  // ConfigError if tp · cp does not divide the key heads.
  GatedDeltaNet(const ParameterScope& scope, const DeltaNetShape& shape, int64_t layer, TensorParallel tp,
                std::optional<comm::Group> cp = {});

  // x [t, h] (or [t/tp, h]) -> output projection + residual, same shape. `residual` may be undefined. State and
  // convolution restart with each sequence. With several context-parallel ranks input.layout is a slice
  // (nn/context_parallel/slice.h), and there is no cache.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual, const LayerInput& input) const override;

 private:
  // Output of the input projection on one rank, with m/tp key heads and n/tp value heads: views, by key head.
  struct Projected {
    at::Tensor q, k;  // [t, m, d]
    at::Tensor v;     // [t, m, n/m e]
    at::Tensor b, a;  // [t, m, n/m]
    at::Tensor z;     // [t, n, e]
  };
  // The input of the recurrence: T tokens, and the heads that this rank mixes (m/tp/cp and n/tp/cp).
  struct Mixed {
    at::Tensor qkv;   // [T, m d + m d + n e], all queries, all keys, all values
    at::Tensor b, a;  // [T, n]
  };
  // x [t, h] or [t/tp, h]; gathers tokens with sequence parallelism.
  Projected project(const at::Tensor& x) const;
  // Trades tokens for heads with the context-parallel ranks, and orders the columns by what they are.
  Mixed to_mixed(const Projected& projected, const ops::SequenceLayout& slice) const;
  // Causal convolution and SiLU of [T, channels]; in generation it continues from the cached inputs.
  at::Tensor convolve(const at::Tensor& qkv, const LayerInput& input) const;
  // The delta rule of convolved queries, keys and values -> [T, n, e]
  at::Tensor core(const Mixed& mixed, const LayerInput& input) const;
  // Mixes the tokens of whole sequences -> [t, n/tp, e] in the dtype of the projections.
  at::Tensor mix(const Projected& projected, const LayerInput& input) const;
  // Returns this context-parallel rank's rows of a parameter, of which `counts` say how many each of its parts has.
  at::Tensor own_rows(const Parameter& parameter, std::initializer_list<int64_t> counts) const;

  DeltaNetShape shape_;
  int64_t layer_;
  std::optional<comm::Group> cp_;    // nullopt: one rank
  int64_t key_heads_, value_heads_;  // heads of this rank's projections: m/tp, n/tp
  ColumnParallelLinear in_;          // by key head, q | k | its v's | its z's, then its b's | its a's; or apart
  Parameter* conv_;                  // [channels, kernel]
  Parameter* a_log_;                 // [n]
  Parameter* dt_bias_;               // [n]
  Norm norm_;
  RowParallelLinear out_;
};

// Returns why the heads, which tp divides, cannot be split further over cp ranks, with the sizes that can; empty if
// they can.
std::string context_parallel_problem(const DeltaNetShape& shape, int tp, int cp);

// Returns the tensors that the input projection fuses: queries, keys, values and gates | b and a of each value head; or
// all of them apart.
std::vector<OutputPart> in_parts(const DeltaNetShape& shape);

// Returns the multiplications per token, as FLOPs are counted in layout/flops/model_flops.h.
double multiplications(const DeltaNetShape& shape);

// Returns the memory and work of the layer, for the planner.
std::unique_ptr<PartFootprint> make_footprint(const FootprintScope& scope, const DeltaNetShape& shape);

}  // namespace megalith::nn
