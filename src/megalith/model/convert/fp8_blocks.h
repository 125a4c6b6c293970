// Exports in the form of DeepSeek-V3's files: weights of linear layers in fp8 with a scale per block of 128 × 128
// (hf/block_scales.h), everything else as it is.
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "megalith/hf/name_map.h"
#include "megalith/model/families/model_config.h"

namespace megalith::model {

// Returns the names in files, those of copies included, of the tensors that such files keep in fp8: the projections of
// attention, of MLPs and of experts. Embeddings, the head, norms, routers, towers and the small projections of
// delta nets are not among them, nor is what joins the inputs of multi-token-prediction layers. Throws ConfigError for
// files that store such weights transposed. `tensors` are all of the model.
std::unordered_set<std::string> fp8_block_names(const ModelConfig& config, const std::vector<hf::GlobalTensor>& tensors,
                                                const hf::TensorMapping& mapping);

// Returns a config.json (its text) with the quantization_config of such files. It names the other linear layers, so
// that transformers does not expect them in fp8.
std::string with_fp8_block_config(const std::string& config_json, const ModelConfig& config,
                                  const std::vector<hf::GlobalTensor>& tensors, const hf::TensorMapping& mapping,
                                  const std::unordered_set<std::string>& in_fp8);

}  // namespace megalith::model
