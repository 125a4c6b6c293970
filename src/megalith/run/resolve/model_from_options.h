// Builds the ModelConfig of a model that is trained from scratch from Megatron's options for shape, layers and
// positions.
//
// The family is one whose checkpoints hold exactly such a model, so that an export loads in transformers:
//
//   LayerNorm, plain MLP, biases, learned positions          gpt2 (gelu, gelu_new with bias_activation_fusion, relu2)
//   RMSNorm, gated MLP, rotary positions
//     no biases, or biases in all linear layers              llama; mistral with window_size
//     biases on query, key and value (add_qkv_bias)          qwen2
//     norms on queries and keys (qk_layernorm)               qwen3
//     experts (num_experts) in every layer                   mixtral
//       with a gated shared one and add_qkv_bias             qwen2_moe
//       with qk_layernorm                                    qwen3_moe
//       with sigmoid scores                                  glm4_moe, also with mtp_num_layers
//     latent attention (multi_latent_attention)              deepseek_v3, also with mtp_num_layers
//       with experts, sigmoid scores and shared ones         deepseek_v3
//
// Any other combination (LayerNorm with rotary positions, rotary_percent, …) makes a model of Megalith's own family
// megatron_gpt: trained, saved, converted, scored and generated from like any other, but unknown to transformers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "megalith/config/training_arguments.h"
#include "megalith/model/families/model_config.h"

namespace megalith::run {

// The facts about the tokenizer that a model stores.
struct ModelVocabulary {
  int64_t size = 0;  // ids are below it
  std::optional<int64_t> bos_id, eos_id, pad_id;
};

// `args` are from the pretrain dialect, after derive(). Throws ConfigError with every problem: missing options, and
// combinations that no layer supports, each with what would fit the others.
model::ModelConfig model_from_options(const config::TrainingArguments& args, const ModelVocabulary& vocabulary);

// Returns a sentence for the log if the model is one that transformers cannot load, with what the nearest Hugging Face
// family lacks; empty otherwise.
std::string export_note(const config::TrainingArguments& args, const model::ModelConfig& config);

}  // namespace megalith::run
