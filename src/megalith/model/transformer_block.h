// TransformerBlock: norm, attention, norm, feed-forward, each branch added to the residual stream.
//
//   (x, y) = fork(x)      y = attention_norm(x)
//   x      = x + dropout(attention(y))
//   (x, y) = fork(x)      y = mlp_norm(x)
//   x      = x + dropout(mlp(y))
//
// Without dropout the addition is part of the branch's last matrix product. With ModelOptions::fp32_residual x is in
// fp32, y and the results of the branches have 16 bits, and the norm after attention adds its result to x. The kinds of
// attention and feed-forward are chosen in block_parts.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "megalith/model/families/model_config.h"
#include "megalith/model/model_options.h"
#include "megalith/model/part_kind.h"
#include "megalith/nn/block_part.h"
#include "megalith/nn/layer_input.h"
#include "megalith/nn/norm.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::model {

// One layer of a model. Used by one thread per rank; ranks of a tensor-parallel group run it together.
class TransformerBlock {
 public:
  // `layer` counts over the whole model, `local` within this chunk. `context` outlives it.
  TransformerBlock(const nn::ParameterScope& scope, const ModelConfig& config, const ModelOptions& options,
                   int64_t layer, int64_t local, parallel::ParallelContext& context);

  // [t, h] (or [t/tp, h]) -> the same shape, both in ModelOptions::stream_dtype().
  at::Tensor forward(const at::Tensor& x, const nn::LayerInput& input) const;

  // Returns the router of its experts, or nullptr in a layer without experts.
  const nn::Router* router() const;
  // Whether training passes draw random numbers in it, not counting those of adapters.
  bool is_random() const { return dropout_ > 0 || attention_.random || feed_forward_.random; }
  // Whether it can run with a KvCache.
  bool is_cached() const { return attention_.cached && feed_forward_.cached; }

 private:
  // One residual branch: x + dropout(part(norm(x))).
  struct Branch {
    nn::Norm norm;
    std::unique_ptr<nn::BlockPart> part;
    bool repeated;  // only its input is kept; backward repeats the part
    bool random, cached;
  };
  // `name` is the scope of its parameters; those of the norm are in NAME_norm.
  Branch make_branch(const nn::ParameterScope& scope, const std::string& name, const ModelConfig& config,
                     const PartKind& kind, const PartSite& site) const;
  // Runs one branch, and its part with or without recomputation. `residual` is undefined if dropout adds it later.
  at::Tensor run(const Branch& branch, const at::Tensor& x, const nn::LayerInput& input) const;
  at::Tensor run_part(const Branch& branch, const at::Tensor& y, const at::Tensor& residual,
                      const nn::LayerInput& input) const;

  // A block whose residual stream is in fp32, without dropout.
  at::Tensor run_wide(const at::Tensor& x, const nn::LayerInput& input) const;
  // Frees the output y of the branch's norm of x once `out`, which depends on it, exists; backward computes it again.
  void discard_norm(const Branch& branch, const at::Tensor& x, const at::Tensor& y, const at::Tensor& out,
                    const nn::LayerInput& input) const;

  bool remakes_norms_;  // outputs of norms are freed after forward and recomputed in backward
  bool wide_stream_;    // the residual stream is wider than the branches
  double dropout_;
  bool adapter_dropout_;  // adapters inside the branches use dropout
  bool tokens_split_;
  parallel::RngTracker& rng_;
  Branch attention_;
  Branch feed_forward_;
};

}  // namespace megalith::model
