// The kinds of parts that a transformer layer is made of: the one place that lists them. A kind is its layer
// (nn/attention/self_attention.h, …) and its footprint beside it, which the planner adds up.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "megalith/model/families/model_config.h"
#include "megalith/model/model_options.h"
#include "megalith/nn/attention/gated_delta_net.h"
#include "megalith/nn/attention/latent_attention.h"
#include "megalith/nn/attention/self_attention.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::model {

// What mixes tokens.
using Attention = std::variant<nn::SelfAttention, nn::LatentAttention, nn::GatedDeltaNet>;

// Which of them a layer has: its index in Attention.
size_t attention_kind(const ModelConfig& config, int64_t layer);

// The attention of a layer. `layer`: over the whole model. `local`: its place in a KvCache. `context` outlives it.
Attention make_attention(const nn::ParameterScope& scope, const ModelConfig& config, const ModelOptions& options,
                         int64_t layer, int64_t local, parallel::ParallelContext& context);

// Every reason why the parts cannot be split over so many tensor-parallel ranks, each with what can; empty when they
// can. Experts: nn::problems.
std::vector<std::string> tensor_parallel_problems(const ModelConfig& config, int tp);

// Multiplications for each token in a layer that carries a state from token to token, as FLOPs are counted
// (layout/model_flops.h); std::nullopt for attention, whose work grows with the sequence.
std::optional<double> recurrent_multiplications(const ModelConfig& config, int64_t layer);

// Footprints of the attention and of the MLP or experts of a layer. What `scope` refers to outlives them.
std::unique_ptr<nn::PartFootprint> attention_footprint(const nn::FootprintScope& scope, const ModelConfig& config,
                                                       const ModelOptions& options, int64_t layer);
std::unique_ptr<nn::PartFootprint> feed_forward_footprint(const nn::FootprintScope& scope, const ModelConfig& config,
                                                          const ModelOptions& options, int64_t layer);

}  // namespace megalith::model
