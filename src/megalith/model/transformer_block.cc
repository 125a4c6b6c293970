#include "megalith/model/transformer_block.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "megalith/model/block_shapes_internal.h"
#include "megalith/nn/recompute.h"
#include "megalith/ops/norm_rope/dropout.h"

namespace megalith::model {

TransformerBlock::TransformerBlock(const nn::ParameterScope& scope, const ModelConfig& config,
                                   const ModelOptions& options, int64_t layer, int64_t local,
                                   parallel::ParallelContext& context)
    : recompute_(options.recompute),
      dropout_(config.hidden_dropout),
      adapter_dropout_(options.adapter && options.adapter->dropout > 0),
      tokens_split_(tensor_parallel(options, context).splits_tokens()),
      rng_(context.rng()),
      attention_norm_(scope.child("attention_norm"), norm_shape(config), tokens_split_, context.place().tp_rank),
      attention_(make_attention(scope.child("attention"), config, options, layer, local, context)),
      mlp_norm_(scope.child("mlp_norm"), norm_shape(config), tokens_split_, context.place().tp_rank) {
  if (config.is_moe(layer))
    moe_.emplace(scope.child("mlp"), moe_shape(config), options.moe, tensor_parallel(config, options, context, layer),
                 context);
  else
    mlp_.emplace(scope.child("mlp"), mlp_shape(config, options), tensor_parallel(config, options, context, layer));
}

template <typename Part>
at::Tensor TransformerBlock::branch(const at::Tensor& x, const nn::Norm& norm, const nn::LayerInput& input,
                                    const Part& part) const {
  const auto [residual, y] = ops::norm_fork(x, norm.weights());
  at::Tensor out;
  if (!input.training || dropout_ == 0) {
    out = part(y, residual);
  } else {
    const at::Tensor delta = part(y, at::Tensor());
    // Tokens that each rank has for itself get masks of their own; replicated ones the same on every rank.
    const auto fork = rng_.fork_if(tokens_split_);
    out = ops::dropout_add(delta, residual, dropout_, rng_.generator());
  }
  if (recompute_.norms && input.training && at::GradMode::is_enabled())
    nn::discard_until_backward(
        y, [x, weights = norm.weights()] { return ops::norm(x, weights); }, out);
  return out;
}

at::Tensor TransformerBlock::run_mlp(const at::Tensor& y, const at::Tensor& residual,
                                     const nn::LayerInput& input) const {
  const auto run = [this, input](const at::Tensor& x, const at::Tensor& added) {
    return moe_ ? moe_->forward(x, added, input) : mlp_->forward(x, added);
  };
  if (!(moe_ ? recompute_.moe : recompute_.mlp) || !input.training) return run(y, residual);
  const bool random = adapter_dropout_ || (moe_ && moe_->router().shape().jitter > 0);
  parallel::RngTracker* rng = random ? &rng_ : nullptr;
  if (!residual.defined()) return nn::recompute([run](const nn::TensorList& in) { return run(in[0], {}); }, {y}, rng);
  return nn::recompute([run](const nn::TensorList& in) { return run(in[0], in[1]); }, {y, residual}, rng);
}

at::Tensor TransformerBlock::forward(const at::Tensor& x, const nn::LayerInput& input) const {
  const at::Tensor middle = branch(x, attention_norm_, input, [&](const at::Tensor& y, const at::Tensor& residual) {
    return std::visit([&](const auto& kind) { return kind.forward(y, residual, input); }, attention_);
  });
  return branch(middle, mlp_norm_, input,
                [&](const at::Tensor& y, const at::Tensor& residual) { return run_mlp(y, residual, input); });
}

}  // namespace megalith::model
