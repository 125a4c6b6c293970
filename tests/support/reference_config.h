// The configuration of a ReferenceModel, from and to an HF config.json. Shares nothing with src/megalith/model.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace megalith::testing {

struct ReferenceRope {
  std::string type = "default";  // default, linear, dynamic, yarn, llama3
  double theta = 10000;
  double partial_rotary_factor = 1;  // share of a head's channels, of which the first ones rotate
  bool interleaved = false;          // pairs are neighbors; latent attention has no others
  double factor = 1;
  int64_t original_positions = 0;  // yarn, llama3
  double low_freq_factor = 1, high_freq_factor = 4;
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;
  std::optional<double> mscale, mscale_all_dim, attention_factor;
  bool operator==(const ReferenceRope&) const = default;
};

// Experts in place of the MLP.
struct ReferenceExperts {
  int64_t count = 4, topk = 2, width = 16;
  int64_t shared_width = 0;            // one more MLP for every token; 0: none
  bool shared_gate = false;            // its output times sigmoid(w x)
  bool sigmoid = false;                // scores are sigmoids, choice adds a bias; otherwise a softmax
  bool normalize = true;               // the chosen scores sum to 1
  double scale = 1;                    // then times this
  int64_t groups = 1, group_topk = 1;  // experts of the best groups only
  int64_t first_dense = 0;             // layers below it have an MLP
  bool operator==(const ReferenceExperts&) const = default;
};

// Latent attention: keys and values from a narrow vector. Rotary pairs are neighbours.
struct ReferenceLatent {
  int64_t q_rank = 0;  // 0: queries come straight from the input
  int64_t kv_rank = 16, nope = 8, rope = 4, value = 8;
  bool operator==(const ReferenceLatent&) const = default;
};

// Gated delta nets in place of attention, but for every fourth layer.
struct ReferenceDeltaNet {
  int64_t key_heads = 2, value_heads = 4, key_dim = 8, value_dim = 8, kernel = 4;
  bool apart = false;  // in_proj_qkv, _z, _b and _a in place of in_proj_qkvz and in_proj_ba, dealt by key head
  bool operator==(const ReferenceDeltaNet&) const = default;
};

struct ReferenceConfig {
  std::string model_type = "llama";
  int64_t vocab_size = 64;
  int64_t hidden_size = 32;
  int64_t intermediate_size = 48;
  int64_t num_layers = 2;
  int64_t num_heads = 4;
  int64_t num_kv_heads = 2;
  int64_t head_dim = 8;
  int64_t max_positions = 64;
  double norm_epsilon = 1e-5;
  bool qkv_bias = false, out_bias = false, mlp_bias = false, qk_norm = false, tied = false;
  std::string activation = "silu";
  std::vector<int64_t> windows;  // per layer, tokens a query sees; 0 means all; empty when all layers see all
  bool scale_attention = true;   // by 1/sqrt(head_dim)
  bool scale_by_inverse_layer = false;
  ReferenceRope rope;
  bool layer_norm = false;         // LayerNorm with a bias in place of RMSNorm
  bool gated_mlp = true;           // otherwise up, activation, down
  bool learned_positions = false;  // in place of the rotation
  bool centered_norms = false;     // norms multiply by 1 + weight
  bool gated_attention = false;    // q_proj yields query | gate, head by head
  std::optional<ReferenceExperts> experts;
  std::optional<ReferenceLatent> latent;
  std::optional<ReferenceDeltaNet> delta_net;
  int64_t mtp = 0;  // multi-token-prediction layers, numbered after the others; families that name them like DeepSeek
  bool operator==(const ReferenceConfig&) const = default;
  bool has_experts(int64_t layer) const { return experts && layer >= experts->first_dense; }
  bool has_delta_net(int64_t layer) const { return delta_net && (layer + 1) % 4 != 0; }

  // The settings that a family fixes (gpt2: biases, kv heads, …), sizes as above.
  static ReferenceConfig of_family(const std::string& model_type);
  static std::vector<std::string> families();
  static bool supports(const std::string& model_type);
  bool is_gpt2() const { return model_type == "gpt2"; }
  bool is_megatron() const { return model_type == "megatron_gpt"; }

  // Both spellings: rope_parameters and dtype, or rope_theta, rope_scaling and torch_dtype.
  static ReferenceConfig from_json(const nlohmann::json& json);
  // In the newer spelling. Throws InternalError for settings that the family's config.json cannot express.
  nlohmann::json to_json() const;
};

}  // namespace megalith::testing
