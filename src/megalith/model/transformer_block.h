// TransformerBlock: norm, attention, norm, feed-forward, each branch added to the residual stream.
//
//   (x, y) = fork(x)      y = attention_norm(x)
//   x      = x + dropout(attention(y))
//   (x, y) = fork(x)      y = mlp_norm(x)
//   x      = x + dropout(mlp(y))
//
// Without dropout the addition is part of the branch's last matrix product. What attention and feed-forward are is
// their kinds' business (block_parts.h).
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

class TransformerBlock {
 public:
  // `layer`: over the whole model. `local`: among the layers of this chunk. `context` outlives it.
  TransformerBlock(const nn::ParameterScope& scope, const ModelConfig& config, const ModelOptions& options,
                   int64_t layer, int64_t local, parallel::ParallelContext& context);

  // [t, h] (or [t/tp, h]) -> the same shape.
  at::Tensor forward(const at::Tensor& x, const nn::LayerInput& input) const;

  // The router of its experts; nullptr in a layer without.
  const nn::Router* router() const;
  // Whether training passes draw random numbers in it, those of adapters aside.
  bool is_random() const { return dropout_ > 0 || attention_.random || feed_forward_.random; }
  // Whether it can run with a KvCache.
  bool is_cached() const { return attention_.cached && feed_forward_.cached; }

 private:
  // One residual branch: x + dropout(part(norm(x))).
  struct Branch {
    nn::Norm norm;
    std::unique_ptr<nn::BlockPart> part;
    bool repeated;  // only its input is kept; it runs again in backward
    bool random, cached;
  };
  // `name`: of its parameters; those of the norm are NAME_norm.
  Branch make_branch(const nn::ParameterScope& scope, const std::string& name, const ModelConfig& config,
                     const PartKind& kind, const PartSite& site) const;
  at::Tensor run(const Branch& branch, const at::Tensor& x, const nn::LayerInput& input) const;
  at::Tensor run_part(const Branch& branch, const at::Tensor& y, const at::Tensor& residual,
                      const nn::LayerInput& input) const;

  bool remakes_norms_;  // their outputs are freed after forward
  double dropout_;
  bool adapter_dropout_;  // there is some inside of the branches
  bool tokens_split_;
  parallel::RngTracker& rng_;
  Branch attention_;
  Branch feed_forward_;
};

}  // namespace megalith::model
