// The kinds of attention, each with its shape from a ModelConfig. Layers and footprints are made by visiting one
// variant, so that a kind for which one of them is missing does not compile; and the choice between MLP and experts.
#include "megalith/model/block_parts.h"

#include <fmt/format.h>

#include <cmath>

#include "megalith/model/block_shapes_internal.h"
#include "megalith/nn/footprint/part_footprint.h"
#include "megalith/nn/moe/moe_layer.h"

namespace megalith::model {

namespace {

nn::AttentionShape attention_shape(const ModelConfig& config, int64_t layer) {
  nn::AttentionShape shape{.hidden = config.hidden_size,
                           .heads = config.num_heads,
                           .kv_heads = config.num_kv_heads,
                           .head_dim = config.head_dim,
                           .qkv_bias = config.qkv_bias,
                           .out_bias = config.out_bias,
                           .output_gate = config.attention_output_gate,
                           .qk_norm = std::nullopt,
                           .window = config.window(layer),
                           .scale = config.attention_scale,
                           .dropout = config.attention_dropout,
                           .init = nn::Init::normal(config.init_std),
                           .out_init = output_init(config)};
  if (config.qk_norm)
    shape.qk_norm = nn::NormShape{config.norm, config.head_dim, config.norm_epsilon, config.zero_centered_norms};
  if (config.scale_by_inverse_layer) {
    const double base = shape.scale > 0 ? shape.scale : 1 / std::sqrt(static_cast<double>(config.head_dim));
    shape.scale = base / static_cast<double>(layer + 1);
  }
  return shape;
}

nn::LatentAttentionShape latent_attention_shape(const ModelConfig& config) {
  return {.hidden = config.hidden_size,
          .heads = config.num_heads,
          .q_rank = config.latent->q_rank,
          .kv_rank = config.latent->kv_rank,
          .nope_dim = config.latent->nope_dim,
          .rotary_dim = config.latent->rotary_dim,
          .value_dim = config.latent->value_dim,
          .bias = config.out_bias,
          .scale = config.attention_scale,
          .dropout = config.attention_dropout,
          .init = nn::Init::normal(config.init_std),
          .out_init = output_init(config)};
}

nn::DeltaNetShape delta_net_shape(const ModelConfig& config) {
  return {.hidden = config.hidden_size,
          .key_heads = config.delta_net->key_heads,
          .value_heads = config.delta_net->value_heads,
          .key_dim = config.delta_net->key_dim,
          .value_dim = config.delta_net->value_dim,
          .conv_kernel = config.delta_net->conv_kernel,
          .norm_epsilon = config.norm_epsilon,
          .init = nn::Init::normal(config.init_std),
          .out_init = output_init(config)};
}

// The shape of each kind, in the order of Attention. A visitor that misses a kind does not compile.
using AnyAttentionShape = std::variant<nn::AttentionShape, nn::LatentAttentionShape, nn::DeltaNetShape>;
static_assert(std::variant_size_v<AnyAttentionShape> == std::variant_size_v<Attention>);

AnyAttentionShape any_attention_shape(const ModelConfig& config, int64_t layer) {
  if (config.is_delta_net(layer)) return delta_net_shape(config);
  if (config.latent) return latent_attention_shape(config);
  return attention_shape(config, layer);
}

template <typename... Handlers>
struct ForEachKind : Handlers... {
  using Handlers::operator()...;
};
template <typename... Handlers>
ForEachKind(Handlers...) -> ForEachKind<Handlers...>;  // Clang 16 does not deduce it

nn::LatentRecompute latent_recompute(const RecomputePlan& plan) {
  return {.core = plan.core_attention, .up_proj = plan.mla_up_proj};
}

}  // namespace

std::vector<std::string> tensor_parallel_problems(const ModelConfig& config, int tp) {
  std::vector<std::string> found;
  if (config.num_heads % tp != 0)
    found.push_back(
        fmt::format("tensor_model_parallel_size {} does not divide the {} attention heads; use a divisor of them", tp,
                    config.num_heads));
  if (!config.latent && config.num_kv_heads % tp != 0 && tp % config.num_kv_heads != 0)
    found.push_back(
        fmt::format("tensor_model_parallel_size {} neither divides the {} key/value heads nor is a multiple of them",
                    tp, config.num_kv_heads));
  if (config.mlp_width % tp != 0)
    found.push_back(
        fmt::format("tensor_model_parallel_size {} does not divide the MLP's width {}", tp, config.mlp_width));
  if (config.delta_net && config.delta_net->key_heads % tp != 0)
    found.push_back(fmt::format("tensor_model_parallel_size {} does not divide the {} key heads of linear attention",
                                tp, config.delta_net->key_heads));
  return found;
}

std::optional<double> recurrent_multiplications(const ModelConfig& config, int64_t layer) {
  if (!config.is_delta_net(layer)) return std::nullopt;
  return nn::multiplications(delta_net_shape(config));
}

size_t attention_kind(const ModelConfig& config, int64_t layer) { return any_attention_shape(config, layer).index(); }

Attention make_attention(const nn::ParameterScope& scope, const ModelConfig& config, const ModelOptions& options,
                         int64_t layer, int64_t local, parallel::ParallelContext& context) {
  const nn::TensorParallel tp = tensor_parallel(config, options, context, layer);
  const nn::ContextParallel cp = context_parallel(options, context, layer);
  const RecomputePlan& plan = options.recompute;
  return std::visit(
      ForEachKind{
          [&](const nn::AttentionShape& shape) -> Attention {
            return nn::SelfAttention(scope, shape, local, tp, context.rng(), plan.core_attention, cp);
          },
          [&](const nn::LatentAttentionShape& shape) -> Attention {
            return nn::LatentAttention(scope, shape, local, tp, context.rng(), latent_recompute(plan), cp);
          },
          [&](const nn::DeltaNetShape& shape) -> Attention { return nn::GatedDeltaNet(scope, shape, local, tp); }},
      any_attention_shape(config, layer));
}

std::unique_ptr<nn::PartFootprint> attention_footprint(const nn::FootprintScope& scope, const ModelConfig& config,
                                                       const ModelOptions& options, int64_t layer) {
  const RecomputePlan& plan = options.recompute;
  return std::visit(ForEachKind{[&](const nn::AttentionShape& shape) {
                                  return nn::make_footprint(scope, shape, plan.core_attention);
                                },
                                [&](const nn::LatentAttentionShape& shape) {
                                  return nn::make_footprint(scope, shape, latent_recompute(plan));
                                },
                                [&](const nn::DeltaNetShape& shape) { return nn::make_footprint(scope, shape); }},
                    any_attention_shape(config, layer));
}

std::unique_ptr<nn::PartFootprint> feed_forward_footprint(const nn::FootprintScope& scope, const ModelConfig& config,
                                                          const ModelOptions& options, int64_t layer) {
  if (config.is_moe(layer)) return nn::make_footprint(scope, moe_shape(config), options.moe);
  return nn::make_footprint(scope, mlp_shape(config, options));
}

}  // namespace megalith::model
