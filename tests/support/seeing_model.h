// A small decoder with a vision tower, as a configuration.
#pragma once

#include "megalith/model/families/model_config.h"
#include "megalith/nn/vision/vision_shape.h"

namespace megalith::testing {

// The width of its layers, and so of a tower's rows (nn::VisionShape::out_width).
inline constexpr int64_t kSeeingWidth = 16;

// Four layers, a vocabulary of 40 and 64 positions; weights are large enough for every one of them to matter.
inline model::ModelConfig seeing_model(const nn::VisionShape& vision) {
  model::ModelConfig config;
  config.family = "llama";
  config.hidden_size = kSeeingWidth;
  config.num_layers = 4;
  config.num_heads = config.num_kv_heads = 4;
  config.head_dim = 4;
  config.mlp_width = 24;
  config.vocab_size = 40;
  config.max_positions = 64;
  config.init_std = 0.3;
  config.rope = ops::RopeSettings{.rotary_dim = 4};
  config.vision = vision;
  return config;
}

}  // namespace megalith::testing
