// TransformerBlock: norm, attention, norm, MLP or experts, each branch added to the residual stream.
//
//   (x, y) = fork(x)      y = attention_norm(x)
//   x      = x + dropout(attention(y))
//   (x, y) = fork(x)      y = mlp_norm(x)
//   x      = x + dropout(mlp(y))
//
// Without dropout the addition is part of the branch's last matrix product.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "megalith/model/block_parts.h"
#include "megalith/model/families/model_config.h"
#include "megalith/model/model_options.h"
#include "megalith/nn/layer_input.h"
#include "megalith/nn/mlp.h"
#include "megalith/nn/moe/moe_layer.h"
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

  // nullptr: a layer without experts.
  const nn::MoeLayer* moe() const { return moe_ ? &*moe_ : nullptr; }

 private:
  // One residual branch: x + dropout(part(norm(x))).
  template <typename Part>
  at::Tensor branch(const at::Tensor& x, const nn::Norm& norm, const nn::LayerInput& input, const Part& part) const;
  at::Tensor run_mlp(const at::Tensor& y, const at::Tensor& residual, const nn::LayerInput& input) const;

  RecomputePlan recompute_;
  double dropout_;
  bool adapter_dropout_;  // there is some inside of the branches
  bool tokens_split_;
  parallel::RngTracker& rng_;
  nn::Norm attention_norm_;
  Attention attention_;
  nn::Norm mlp_norm_;
  std::optional<nn::Mlp> mlp_;       // either this
  std::optional<nn::MoeLayer> moe_;  // or this
};

}  // namespace megalith::model
