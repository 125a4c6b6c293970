// TrainedLayers: which weights a run trains that freezes the rest of the model (finetuning_type freeze). The only place
// that decides it; models, exports, checkpoints and the planner ask here.
//
// A choice names layers, modules in them and modules outside of layers, by the names of transformers:
//
//   model.layers.30.self_attn.q_proj.weight    layer 30, module self_attn
//   model.layers.30.input_layernorm.weight     layer 30, module input_layernorm
//   model.norm.weight, lm_head.weight          modules norm and lm_head, outside of layers
//
// Multi-token-prediction layers are frozen. Towers follow FreezePlan alone.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/hf/name_map.h"

namespace megalith::model {

struct ModelConfig;

// A choice as LLaMA-Factory's options express it.
struct LayerChoice {
  int64_t layers = 2;                       // above 0 the last so many layers, below 0 the first
  std::vector<std::string> modules{"all"};  // modules of these layers that are trained
  std::vector<std::string> extra;           // outside of layers
  bool spread = false;                      // LLaMA Pro: every n-th layer instead, so that there are `layers` of them
  bool operator==(const LayerChoice&) const = default;
};

// Immutable.
class TrainedLayers {
 public:
  // Throws ConfigError for a number of layers that cannot be spread evenly.
  TrainedLayers(LayerChoice choice, const ModelConfig& config);

  // Returns whether a tensor of ours is trained ("layers.30.attention.q.weight").
  bool trains(std::string_view ours) const;
  // Returns whether something of a layer is trained, and whether something of one part of it is ("attention",
  // "mlp_norm": our names).
  bool trains_layer(int64_t layer) const { return layers_.contains(layer) && !choice_.modules.empty(); }
  bool trains_part(int64_t layer, std::string_view part) const;

 private:
  bool names(const std::string& module) const;

  const LayerChoice choice_;
  const hf::NameMap names_;
  const std::set<int64_t> layers_;
};

// Throws ConfigError for modules that the model does not have, with those that it has, and like the constructor.
// `tensors` are those of the whole model (global_tensors).
void check_layer_choice(const LayerChoice& choice, const ModelConfig& config,
                        const std::vector<hf::GlobalTensor>& tensors);

}  // namespace megalith::model
