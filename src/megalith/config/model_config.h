// The model: where it comes from and, for training from scratch, its shape.
//
// std::nullopt means "as the checkpoint's config says"; for `pretrain`, validate() checks the required ones.
//
// Each member is an option: options/model.cc and options/moe.cc give its name, its range and its meaning, and
// docs/options.md shows them. Comments here add only what the help text does not say.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/enums.h"
#include "megalith/config/value.h"

namespace megalith::config {

// The source of the weights.
struct ModelSourceConfig {
  std::optional<std::string> model_name_or_path;
  bool train_from_scratch = false;
  JsonObject additional_configs;
  bool split_special_tokens = false;
  // The vocabulary: see run/vocabulary/run_vocabulary.h.
  bool resize_vocab = false;
  std::vector<std::string> add_tokens;
  std::vector<std::string> add_special_tokens;
  std::optional<TransformerImpl> transformer_impl;
  bool operator==(const ModelSourceConfig&) const = default;
};

// Sizes of the model.
struct ModelShapeConfig {
  std::optional<int> num_layers;
  // h, the width of the residual stream, and the sizes that follow from it unless given.
  std::optional<int> hidden_size;
  std::optional<int> ffn_hidden_size;
  std::optional<int> num_attention_heads;
  bool group_query_attention = false;
  std::optional<int> num_query_groups;
  std::optional<int> kv_channels;
  // Lengths in tokens.
  std::optional<int> seq_length;  // for Megatron's data; for other data see DataConfig::cutoff_len
  std::optional<int> max_position_embeddings;
  // The vocabulary: as the tokenizer has it, and after padding.
  std::optional<int> vocab_size;
  std::optional<int> padded_vocab_size;
  int make_vocab_size_divisible_by = 128;
  std::optional<bool> untie_embeddings;
  // Multi-token prediction.
  std::optional<int> mtp_num_layers = 0;  // 0 and std::nullopt both mean none
  double mtp_loss_scaling_factor = 0.1;
  bool operator==(const ModelShapeConfig&) const = default;
};

// The parts of a layer. With a model folder its config.json decides, and the members marked describes_new_model() must
// keep their defaults; dropout and the initial deviation may be changed in any case.
struct LayerConfig {
  std::optional<Normalization> normalization;
  std::optional<double> norm_epsilon;
  // At most one activation; GELU without any.
  std::optional<bool> swiglu;
  std::optional<bool> squared_relu;
  std::optional<bool> quick_geglu;
  std::optional<bool> add_bias_linear;
  std::optional<bool> add_qkv_bias;
  std::optional<bool> qk_layernorm;
  std::optional<bool> apply_layernorm_1p;
  std::optional<bool> apply_query_key_layer_scaling;
  std::optional<bool> attention_softmax_in_fp32;
  // Probabilities of dropout, and the standard deviation of initial weights.
  std::optional<double> hidden_dropout;
  std::optional<double> attention_dropout;
  std::optional<double> init_method_std;
  std::optional<bool> attention_output_gate;
  std::optional<std::string> window_size;            // "left,right"
  std::optional<std::string> window_attn_skip_freq;  // a number, or a list
  bool operator==(const LayerConfig&) const = default;
};

// Position embedding. `type` chooses it; the other members belong to one or two of the types.
struct PositionConfig {
  std::optional<PositionEmbedding> type;
  bool add_embedding = true;          // Megatron's older way to say `type`
  std::optional<double> rotary_base;  // theta
  std::optional<double> rotary_percent;
  std::optional<bool> rotary_interleaved;  // pairs (0, 1), (2, 3), …
  std::optional<int> rotary_interpolation_factor;
  // Llama 3's scaling of low frequencies.
  std::optional<bool> use_rope_scaling;
  std::optional<double> rope_scaling_factor;
  // YaRN, for latent attention.
  std::optional<RopeType> rope_type;
  std::optional<double> rotary_scaling_factor;
  std::optional<int> original_max_position_embeddings;
  std::optional<double> beta_fast;
  std::optional<double> beta_slow;
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  bool operator==(const PositionConfig&) const = default;
};

// Multi-latent attention (DeepSeek): queries, keys and values are made from low-rank latents, and only a part of each
// head rotates.
struct MlaConfig {
  bool multi_latent_attention = false;
  // Ranks of the compressed query and of the compressed key and value; sizes of a head's parts.
  std::optional<int> q_lora_rank;
  std::optional<int> kv_lora_rank;
  std::optional<int> qk_head_dim;
  std::optional<int> qk_pos_emb_head_dim;
  std::optional<int> v_head_dim;
  bool operator==(const MlaConfig&) const = default;
};

// Experts. A layer has either one dense MLP or num_experts of them with a router; layer_freq says which layers have
// experts.
struct MoeConfig {
  std::optional<int> num_experts;
  std::optional<std::string> layer_freq;
  std::optional<int> ffn_hidden_size;
  // Shared experts see every token.
  std::optional<int> shared_expert_intermediate_size;
  std::optional<bool> shared_expert_gate;
  bool shared_expert_overlap = false;
  bool overlap_expert_parallel_comm = false;  // one micro-batch computes while tokens of another travel
  // The exchange of tokens, and how many an expert takes.
  TokenDispatcher token_dispatcher = TokenDispatcher::kAllToAll;
  std::optional<bool> grouped_gemm;
  std::optional<double> expert_capacity_factor;
  std::optional<bool> pad_expert_input_to_capacity;
  std::optional<DropPolicy> token_drop_policy;
  bool enable_routing_replay = false;
  bool per_layer_logging = false;
  bool operator==(const MoeConfig&) const = default;
};

// The router of the experts: scores for each token, the choice of topk experts, and what keeps them equally busy.
struct RouterConfig {
  std::optional<int> topk;
  // Losses that keep experts equally busy, and their coefficients in the same order.
  std::vector<std::string> load_balancing_type;
  std::vector<double> aux_loss_coeff;  // empty means the checkpoint's
  std::optional<double> z_loss_coeff;
  std::optional<ScoreFunction> score_function;
  std::optional<RouterDtype> dtype;
  std::optional<bool> pre_softmax;
  // Group-limited choice of experts.
  std::optional<int> num_groups;
  std::optional<int> group_topk;
  std::optional<double> topk_scaling_factor;
  // Balance by a bias on the choice, without a loss.
  std::optional<bool> enable_expert_bias;
  std::optional<double> bias_update_rate;
  std::optional<double> input_jitter_eps;  // multiplicative
  bool operator==(const RouterConfig&) const = default;
};

// Activations that are computed again, or moved to the host, to save memory.
struct RecomputeConfig {
  std::optional<RecomputeGranularity> granularity;
  std::optional<RecomputeMethod> method;
  std::optional<int> num_layers;
  std::vector<std::string> modules;
  bool moe_layer_recompute = false;
  // Short forms of the above; derive() resolves them.
  bool gradient_checkpointing = false;
  bool recompute_activations = false;
  bool distribute_saved_activations = false;
  bool cpu_offloading = false;
  int cpu_offloading_num_layers = 0;
  bool operator==(const RecomputeConfig&) const = default;
};

// Fused kernels and CUDA graphs. Most switches of the reference choose between kernels of which Megalith has one.
struct FusionConfig {
  // Kernels are always fused; these switches exist for the options of the reference.
  bool bias_activation = false;
  bool rope = false;
  bool cross_entropy_loss = false;
  bool gradient_accumulation = true;
  // CUDA graphs of whole micro-batches.
  std::optional<std::string> cuda_graph_impl;
  std::vector<std::string> cuda_graph_scope{"full"};
  int cuda_graph_warmup_steps = 3;
  bool operator==(const FusionConfig&) const = default;
};

}  // namespace megalith::config
