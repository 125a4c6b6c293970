// The sizes of a model in the form that layout::model_flops takes, to count the FLOPs of a step. The count follows
// Megatron-LM's formula, so that MFU and TFLOP/s can be compared: products of matrices only, backward as two forwards,
// and nothing for recomputation.
#pragma once

#include "megalith/layout/flops/model_flops.h"
#include "megalith/model/block_parts.h"
#include "megalith/model/families/model_config.h"
#include "megalith/model/model_options.h"

namespace megalith::model {

// Returns the sizes. Windowed attention counts as full attention, as in Megatron-LM. Rows that only pad
// the vocabulary do not count.
inline layout::ModelFlopsShape flops_shape(const ModelConfig& config) {
  layout::ModelFlopsShape shape;
  shape.hidden_size = config.hidden_size;
  shape.ffn_hidden_size = config.mlp_width;
  shape.gated_mlp = config.gated_mlp;
  shape.num_heads = config.num_heads;
  shape.num_kv_heads = config.num_kv_heads;
  shape.head_dim = config.head_dim;
  shape.padded_vocab_size = config.num_labels > 0 ? config.num_labels : config.vocab_size;
  shape.output_gate = config.attention_output_gate;
  shape.mtp_layers = config.mtp_layers;
  if (const auto& latent = config.latent)
    shape.mla = {.q_rank = latent->q_rank > 0 ? std::optional(latent->q_rank) : std::nullopt,
                 .kv_rank = latent->kv_rank,
                 .qk_head_dim = latent->nope_dim,
                 .rotary_head_dim = latent->rotary_dim,
                 .v_head_dim = latent->value_dim};
  // A part that states its multiplications replaces the formula for its layer, in order.
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    shape.layer_is_moe.push_back(config.is_moe(layer));
    if (const auto count = attention_kind(config, layer)->facts().multiplications)
      shape.recurrent_layers.push_back(*count);
    if (const auto count = feed_forward_kind(config, layer)->facts().multiplications)
      shape.other_feed_forwards.push_back(*count);
  }
  if (config.moe) {
    shape.expert_ffn_hidden_size = config.moe->width;
    shape.experts_per_token = config.moe->router.topk;
    shape.shared_expert_ffn_hidden_size = config.moe->shared_width;
  }
  return shape;
}

// Returns the sizes of a vision tower.
inline layout::VisionFlopsShape flops_shape(const nn::VisionShape& tower) {
  return {.depth = tower.depth,
          .width = tower.width,
          .mlp_width = tower.mlp_width,
          .gated_mlp = tower.gated_mlp,
          .patch_numbers = tower.patch_pixels(),
          .merge = tower.merge,
          .out_width = tower.out_width,
          .deepstack = static_cast<int64_t>(tower.deepstack_blocks.size()),
          .window_side = tower.window > 0 ? tower.window_side() : 0,
          .full_blocks = static_cast<int64_t>(tower.full_blocks.size())};
}

// Returns the FLOPs of the vision tower for images of these sizes, ModelInput::grids; 0 without any.
inline double vision_flops(const ModelConfig& config, const FreezePlan& freeze, const at::Tensor& grids) {
  if (!config.vision || !grids.defined()) return 0;
  const layout::VisionFlopsShape shape = flops_shape(*config.vision);
  layout::VisionWork work;
  for (const nn::ImageGrid& grid : nn::image_grids(grids, config.vision->merge))
    work.add(shape, grid.time, grid.height, grid.width);
  return layout::vision_flops(shape, work, freeze.vision_tower, freeze.projector);
}

// Returns the sizes of an audio tower.
inline layout::AudioFlopsShape flops_shape(const nn::AudioShape& tower) {
  return {.depth = tower.depth,
          .width = tower.width,
          .mlp_width = tower.mlp_width,
          .mel_bins = tower.mel_bins,
          .chunk = tower.chunk,
          .channels = tower.conv_channels,
          .window_rows = tower.window_rows(),
          .out_width = tower.out_width};
}

// Returns the FLOPs of the audio tower for sounds of these lengths, ModelInput::audio_lengths; 0 without any.
inline double audio_flops(const ModelConfig& config, const FreezePlan& freeze, const at::Tensor& lengths) {
  if (!config.audio || !lengths.defined()) return 0;
  const layout::AudioFlopsShape shape = flops_shape(*config.audio);
  layout::AudioWork work;
  for (const int64_t frames : nn::audio_lengths(lengths)) work.add(shape, frames);
  return layout::audio_flops(shape, work, freeze.vision_tower, freeze.projector);
}

}  // namespace megalith::model
