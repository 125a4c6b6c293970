// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) under tensor parallelism.
//
//   x ─► down ─┬─ query latent ─► norm ─► q_up ─► heads of  nope | rotary      (with q_rank 0, q_up reads x itself)
//              ├─ key/value latent ─► norm ─► kv_up ─► heads of  nope key | value
//              └─ rotary key, shared by all heads
//
// The down projections are small and replicated on every rank. The up projections are split by heads. With sequence
// parallelism the latents are computed on the token shards and gathered by the up projections, so that the collectives
// move the small latent instead of the hidden state.
//
// Legend: t tokens, h hidden, n heads; channels per head: c of queries and keys without position ("nope"), r rotary,
// e of values.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "megalith/nn/block_part.h"
#include "megalith/nn/context_parallel/context_parallel.h"
#include "megalith/nn/norm.h"
#include "megalith/nn/tensor_parallel/linear.h"
#include "megalith/nn/tensor_parallel/replicated_linear.h"
#include "megalith/parallel/rng_tracker.h"

namespace megalith::nn {

class FootprintScope;
class PartFootprint;

// Sizes of one layer over all tensor-parallel ranks.
struct LatentAttentionShape {
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t q_rank = 0;      // channels of the query latent; 0 = queries are not compressed
  int64_t kv_rank = 0;     // channels of the key/value latent
  int64_t nope_dim = 0;    // c
  int64_t rotary_dim = 0;  // r; the angles of a forward pass have as many channels
  int64_t value_dim = 0;   // e
  double latent_epsilon = 1e-6;
  bool bias = false;   // on the down and output projections
  double scale = 0;    // factor of q·k; 0 = 1/sqrt(c + r)
  double dropout = 0;  // on the attention probabilities
  Init init;           // for all projections but the output
  Init out_init;       // for the output projection
};

// Tensors that backward recomputes instead of keeping.
struct LatentRecompute {
  bool core = false;     // scores and probabilities
  bool up_proj = false;  // queries, keys and values: only the latents are kept
};

// Its parameters are down, kv_latent_norm, q_up (or q), kv_up, o and, with a query latent, q_latent_norm.
class LatentAttention : public BlockPart {
 public:
  // `layer` is its index in a KvCache. Throws ConfigError if tp does not divide the heads. `rng` outlives it.
  LatentAttention(const ParameterScope& scope, const LatentAttentionShape& shape, int64_t layer, TensorParallel tp,
                  parallel::RngTracker& rng, LatentRecompute recompute, ContextParallel cp = {});

  // x [t, h] (or [t/tp, h]) -> output projection + residual, same shape. `residual` may be undefined.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual, const LayerInput& input) const override;

 private:
  struct Latents {
    at::Tensor q;    // [t, q_rank] or x itself; with sequence parallelism t/tp rows
    at::Tensor kv;   // [t, kv_rank]; with sequence parallelism t/tp rows
    at::Tensor key;  // [t, r], all tokens: the rotary key before rotation
  };
  struct Heads {
    at::Tensor q, k, v;  // [t, n/tp, c + r] twice, [t, n/tp, e]; each with its own storage
  };
  Latents compress(const at::Tensor& x) const;  // down projection and norms
  // Up projections and rotation of the rotary channels.
  Heads expand(const Latents& latents, const LayerInput& input) const;
  at::Tensor attend(const Latents& latents, const LayerInput& input) const;  // -> [t, n/tp, e]
  at::Tensor core(const Heads& heads, const LayerInput& input) const;

  LatentAttentionShape shape_;
  int64_t layer_;
  TensorParallel tp_;
  ContextParallel cp_;
  parallel::RngTracker& rng_;
  LatentRecompute recompute_;
  ReplicatedLinear down_;  // query latent | key/value latent | rotary key
  std::optional<Norm> q_norm_;
  Norm kv_norm_;
  ColumnParallelLinear q_up_;
  ColumnParallelLinear kv_up_;
  RowParallelLinear out_;
  ops::AttentionPlans* plans_;
};

// Return the tensors that each projection fuses: down to query latent | key/value latent with the rotary key, and up to
// the heads.
std::vector<OutputPart> down_parts(const LatentAttentionShape& shape);
std::vector<OutputPart> q_up_parts(const LatentAttentionShape& shape);
std::vector<OutputPart> kv_up_parts(const LatentAttentionShape& shape);

// Returns the memory and work of the layer, for the planner.
std::unique_ptr<PartFootprint> make_footprint(const FootprintScope& scope, const LatentAttentionShape& shape,
                                              LatentRecompute recompute);

}  // namespace megalith::nn
