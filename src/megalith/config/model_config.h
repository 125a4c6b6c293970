// What the model is: where it comes from, and, for training from scratch, its shape.
//
// Empty optionals mean "as the checkpoint's config says"; with `pretrain` the required ones are checked by validate().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/choices.h"
#include "megalith/config/value.h"

namespace megalith::config {

struct ModelSourceConfig {
  std::optional<std::string> model_name_or_path;    // folder with config.json and safetensors
  bool train_from_scratch = false;                  // take the shape, draw the weights
  JsonObject additional_configs;                    // further model-config keys; explicit options win
  bool split_special_tokens = false;                // special tokens inside text are split as text
  std::optional<TransformerImpl> transformer_impl;  // names the reference's layer library; Megalith has one
  bool operator==(const ModelSourceConfig&) const = default;
};

struct ModelShapeConfig {
  std::optional<int> num_layers;               // decoder layers
  std::optional<int> hidden_size;              // width of the residual stream
  std::optional<int> ffn_hidden_size;          // MLP width; empty: 4h, with swiglu floor(4h*2/3/64)*64
  std::optional<int> num_attention_heads;      // query heads
  bool group_query_attention = false;          // fewer key/value heads than query heads
  std::optional<int> num_query_groups;         // key/value heads, with group_query_attention
  std::optional<int> kv_channels;              // size of a head; empty: hidden / heads
  std::optional<int> seq_length;               // tokens of a training sample (Megatron data)
  std::optional<int> max_position_embeddings;  // longest sequence the model takes
  std::optional<int> vocab_size;               // before padding
  std::optional<int> padded_vocab_size;        // after padding; empty: computed
  int make_vocab_size_divisible_by = 128;      // padded vocabulary: a multiple of this times tp
  std::optional<bool> untie_embeddings;        // own output matrix in place of the embedding's
  std::optional<int> mtp_num_layers = 0;       // multi-token-prediction depths; 0 and empty: none
  double mtp_loss_scaling_factor = 0.1;        // weight of their loss
  bool operator==(const ModelShapeConfig&) const = default;
};

struct LayerConfig {
  std::optional<Normalization> normalization;         // LayerNorm or RMSNorm
  std::optional<double> norm_epsilon;                 // added to the variance
  std::optional<bool> swiglu;                         // gated SiLU MLP
  std::optional<bool> squared_relu;                   // squared ReLU MLP
  std::optional<bool> quick_geglu;                    // gated quick-GELU MLP
  std::optional<bool> add_bias_linear;                // biases in linear layers
  std::optional<bool> add_qkv_bias;                   // bias in the query/key/value projection
  std::optional<bool> qk_layernorm;                   // norm on queries and keys
  std::optional<bool> apply_layernorm_1p;             // norm weight stored as w - 1
  std::optional<bool> apply_query_key_layer_scaling;  // scale attention scores by the layer number
  std::optional<bool> attention_softmax_in_fp32;      // softmax of the attention in fp32
  std::optional<double> hidden_dropout;               // after attention and MLP
  std::optional<double> attention_dropout;            // on attention probabilities
  std::optional<double> init_method_std;              // standard deviation of fresh weights
  std::optional<bool> attention_output_gate;          // sigmoid gate on the attention output
  bool operator==(const LayerConfig&) const = default;
};

struct PositionConfig {
  std::optional<PositionEmbedding> type;                // how positions enter
  std::optional<double> rotary_base;                    // theta
  std::optional<double> rotary_percent;                 // part of a head that rotates
  std::optional<bool> rotary_interleaved;               // pairs (0,1),(2,3) in place of halves
  std::optional<int> rotary_interpolation_factor;       // linear stretch of positions
  std::optional<bool> use_rope_scaling;                 // llama 3 scaling
  std::optional<double> rope_scaling_factor;            // its factor
  std::optional<RopeType> rope_type;                    // MLA: rope or yarn
  std::optional<double> rotary_scaling_factor;          // MLA: yarn factor
  std::optional<int> original_max_position_embeddings;  // yarn: trained length
  std::optional<double> beta_fast;                      // yarn
  std::optional<double> beta_slow;                      // yarn
  std::optional<double> mscale;                         // yarn
  std::optional<double> mscale_all_dim;                 // yarn
  bool operator==(const PositionConfig&) const = default;
};

struct MlaConfig {
  bool multi_latent_attention = false;     // DeepSeek's low-rank attention
  std::optional<int> q_lora_rank;          // query compression; empty: none
  std::optional<int> kv_lora_rank;         // key/value compression
  std::optional<int> qk_head_dim;          // unrotated part of a query/key head
  std::optional<int> qk_pos_emb_head_dim;  // rotated part
  std::optional<int> v_head_dim;           // value head
  bool operator==(const MlaConfig&) const = default;
};

struct MoeConfig {
  std::optional<int> num_experts;                      // experts a MoE layer
  std::optional<std::string> layer_freq;               // n or a list such as ([1]*3+[0]*2): which layers are MoE
  std::optional<int> ffn_hidden_size;                  // width of an expert
  std::optional<int> shared_expert_intermediate_size;  // width of all shared experts together
  std::optional<bool> shared_expert_gate;              // sigmoid gate on the shared expert
  bool shared_expert_overlap = false;                  // run it beside the dispatch; alltoall only
  TokenDispatcher token_dispatcher = TokenDispatcher::kAllGather;  // how tokens reach their experts
  std::optional<bool> grouped_gemm;                                // one kernel for all local experts
  std::optional<double> expert_capacity_factor;      // rows per expert over the fair share; empty: no drop
  std::optional<bool> pad_expert_input_to_capacity;  // always exactly that many rows
  std::optional<DropPolicy> token_drop_policy;       // which tokens go first
  bool enable_routing_replay = false;                // record and replay the routing decision
  bool operator==(const MoeConfig&) const = default;
};

struct RouterConfig {
  std::optional<int> topk;                       // experts a token
  std::vector<std::string> load_balancing_type;  // aux_loss, seq_aux_loss, global_aux_loss, sinkhorn, none
  std::vector<double> aux_loss_coeff;            // one per balancing type; empty: checkpoint's
  std::optional<double> z_loss_coeff;            // weight of the logit penalty
  std::optional<ScoreFunction> score_function;   // softmax or sigmoid
  std::optional<RouterDtype> dtype;              // empty: fp32 from 32 experts on
  std::optional<bool> pre_softmax;               // softmax before the top-k
  std::optional<int> num_groups;                 // group-limited routing
  std::optional<int> group_topk;                 // groups a token may use
  std::optional<double> topk_scaling_factor;     // multiplies the chosen weights
  std::optional<bool> enable_expert_bias;        // balance by a bias in place of a loss
  std::optional<double> bias_update_rate;        // its step
  std::optional<double> input_jitter_eps;        // multiplicative noise on the router input
  bool operator==(const RouterConfig&) const = default;
};

struct RecomputeConfig {
  std::optional<RecomputeGranularity> granularity;  // full layers or selected modules
  std::optional<RecomputeMethod> method;            // with full: groups of n layers, or the first n
  std::optional<int> num_layers;                    // that n
  std::vector<std::string> modules;                 // with selective; empty: core_attn
  bool moe_layer_recompute = false;                 // recompute MoE layers whole
  bool gradient_checkpointing = false;              // HF spelling of full, uniform, 1
  bool recompute_activations = false;               // Megatron spelling of selective
  bool distribute_saved_activations = false;        // split the stored inputs over tp
  bool cpu_offloading = false;                      // keep activations in host memory
  int cpu_offloading_num_layers = 0;                // layers offloaded
  bool operator==(const RecomputeConfig&) const = default;
};

struct FusionConfig {
  bool bias_activation = false;                       // bias and activation in one kernel
  bool rope = false;                                  // rotary embedding in one kernel
  bool cross_entropy_loss = false;                    // softmax, loss and gradient in one kernel; effective with tp 1
  bool gradient_accumulation = true;                  // weight gradients straight into the fp32 buffer
  std::optional<std::string> cuda_graph_impl;         // local or transformer_engine
  std::vector<std::string> cuda_graph_scope{"full"};  // what a graph captures
  int cuda_graph_warmup_steps = 3;                    // steps without graphs before the first is recorded
  bool operator==(const FusionConfig&) const = default;
};

}  // namespace megalith::config
