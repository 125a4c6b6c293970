// Vision towers in files: the part of config.json that describes one, and the names of its tensors.
#pragma once

#include <string>
#include <vector>

#include "megalith/hf/name_map.h"
#include "megalith/io/json_reader.h"
#include "megalith/nn/vision/vision_shape.h"

namespace megalith::model {

// The spellings of towers. They differ in keys, in what is not written down, and in names:
//
//             width, output              MLP, activation             merger            learned positions, deepstack
//   kQwen2    embed_dim, hidden_size     fc1, fc2, quick-GELU        ln_q, mlp.0/2     no
//   kQwen2_5  hidden_size,               gate_proj, up_proj,         ln_q, mlp.0/2     no (windows)
//             out_hidden_size            down_proj, SiLU, RMSNorm
//   kQwen3    as kQwen2_5                linear_fc1/2, tanh-GELU     norm,             pos_embed, deepstack_merger_list
//                                                                    linear_fc1/2
//   kOmni     as kQwen3                  as kQwen3                   ln_q, mlp.0/2     pos_embed, merger_list
enum class VisionFiles { kQwen2, kQwen2_5, kQwen3, kOmni };

// Reads the keys of a tower. Throws DataError for missing or mistyped keys, ConfigError for sizes that do not fit
// together.
nn::VisionShape read_vision(const io::JsonFields& vision, VisionFiles files);

// Returns the rules for the tensors of a tower, which files name `prefix` + "blocks.0.norm1.weight" and so on. Ours
// start with "vision.".
std::vector<hf::NameRule> vision_rules(const nn::VisionShape& shape, VisionFiles files, const std::string& prefix);

}  // namespace megalith::model
