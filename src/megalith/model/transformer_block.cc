// A block is two residual branches of the same form. With hidden dropout the branch returns its delta, and dropout and
// addition are one operation; without it the residual is passed into the part, whose last product adds it. A residual
// stream in fp32 is added by the next norm, or at the end of the block by itself: products have results in one type.
// Outputs of norms can be discarded after forward, because they are cheap to recompute from x, which the residual
// stream keeps.
#include "megalith/model/transformer_block.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "megalith/model/block_parts.h"
#include "megalith/model/block_shapes_internal.h"
#include "megalith/nn/recompute.h"
#include "megalith/ops/norm_rope/dropout.h"

namespace megalith::model {

namespace {

// `layer` decides fp8 and the context-parallel mode, `local` is the slot in a KvCache of this chunk.
PartSite part_site(const ModelConfig& config, const ModelOptions& options, int64_t layer, int64_t local,
                   parallel::ParallelContext& context) {
  return {.options = options,
          .context = context,
          .layer = layer,
          .cache_layer = local,
          .tp = tensor_parallel(config, options, context, layer),
          .cp = context_parallel(options, context, layer)};
}

}  // namespace

TransformerBlock::TransformerBlock(const nn::ParameterScope& scope, const ModelConfig& config,
                                   const ModelOptions& options, int64_t layer, int64_t local,
                                   parallel::ParallelContext& context)
    : remakes_norms_(options.recompute.norms),
      wide_stream_(options.wide_stream()),
      dropout_(config.hidden_dropout),
      adapter_dropout_(options.adapter && options.adapter->dropout > 0),
      tokens_split_(tensor_parallel(options, context).splits_tokens()),
      rng_(context.rng()),
      attention_(make_branch(scope, "attention", config, *attention_kind(config, layer),
                             part_site(config, options, layer, local, context))),
      feed_forward_(make_branch(scope, "mlp", config, *feed_forward_kind(config, layer),
                                part_site(config, options, layer, local, context))) {}

TransformerBlock::Branch TransformerBlock::make_branch(const nn::ParameterScope& scope, const std::string& name,
                                                       const ModelConfig& config, const PartKind& kind,
                                                       const PartSite& site) const {
  const PartFacts facts = kind.facts();
  return {.norm = nn::Norm(scope.child(name + "_norm"), norm_shape(config), tokens_split_, site.tp.rank()),
          .part = kind.make(scope.child(name), site),
          .repeated = kind.repeated(site.options.recompute),
          .random = facts.random,
          .cached = facts.cached};
}

const nn::Router* TransformerBlock::router() const {
  // A family's own part may put experts into the attention branch.
  const nn::Router* router = feed_forward_.part->router();
  return router ? router : attention_.part->router();
}

at::Tensor TransformerBlock::run(const Branch& branch, const at::Tensor& x, const nn::LayerInput& input) const {
  // One operation for both uses of x, so that backward adds their gradients in one pass.
  const auto [residual, y] = ops::norm_fork(x, branch.norm.weights());
  at::Tensor out;
  if (!input.training || dropout_ == 0) {
    out = run_part(branch, y, residual, input);
  } else {
    const at::Tensor delta = run_part(branch, y, at::Tensor(), input);
    // Ranks with different tokens draw different masks; ranks with the same tokens must draw the same.
    const auto fork = rng_.fork_if(tokens_split_);
    out = ops::dropout_add(delta, residual, dropout_, rng_.generator());
  }
  discard_norm(branch, x, y, out, input);
  return out;
}

// The hook on `out` restores y right before the backward of its reader runs.
void TransformerBlock::discard_norm(const Branch& branch, const at::Tensor& x, const at::Tensor& y,
                                    const at::Tensor& out, const nn::LayerInput& input) const {
  if (remakes_norms_ && input.training && at::GradMode::is_enabled())
    nn::discard_until_backward(
        y, [x, weights = branch.norm.weights()] { return ops::norm(x, weights); }, out);
}

at::Tensor TransformerBlock::run_wide(const at::Tensor& x, const nn::LayerInput& input) const {
  const auto part_of = [&](const Branch& branch, const at::Tensor& stream, const at::Tensor& y) {
    at::Tensor delta = run_part(branch, y, at::Tensor(), input);
    discard_norm(branch, stream, y, delta, input);
    return delta;
  };
  auto [residual, y] = ops::norm_fork(x, attention_.norm.weights());
  at::Tensor delta = part_of(attention_, x, std::exchange(y, {}));
  const auto [middle, z] =
      ops::add_norm(std::exchange(residual, {}), std::exchange(delta, {}), feed_forward_.norm.weights());
  return middle + part_of(feed_forward_, middle, z);
}

at::Tensor TransformerBlock::run_part(const Branch& branch, const at::Tensor& y, const at::Tensor& residual,
                                      const nn::LayerInput& input) const {
  const nn::BlockPart& part = *branch.part;
  if (!branch.repeated || !input.training) return part.forward(y, residual, input);
  const auto run_part = [&part, input](const nn::TensorList& kept) {
    return part.forward(kept[0], kept.size() > 1 ? kept[1] : at::Tensor(), input);
  };
  // The second run must draw the numbers of the first. Without any, saving the generators' state is skipped.
  parallel::RngTracker* rng = adapter_dropout_ || branch.random ? &rng_ : nullptr;
  return nn::recompute(run_part, residual.defined() ? nn::TensorList{y, residual} : nn::TensorList{y}, rng);
}

at::Tensor TransformerBlock::forward(const at::Tensor& x, const nn::LayerInput& input) const {
  if (wide_stream_ && (!input.training || dropout_ == 0)) return run_wide(x, input);
  return run(feed_forward_, run(attention_, x, input), input);
}

}  // namespace megalith::model
