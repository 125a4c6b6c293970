// What a ReferenceModel is made of, from and to an HF config.json. Shares nothing with src/megalith/model.
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
  double partial_rotary_factor = 1;  // of a head's channels, the first ones rotate
  double factor = 1;
  int64_t original_positions = 0;  // yarn, llama3
  double low_freq_factor = 1, high_freq_factor = 4;
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;
  std::optional<double> mscale, mscale_all_dim, attention_factor;
  bool operator==(const ReferenceRope&) const = default;
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
  std::vector<int64_t> windows;  // per layer, tokens a query sees; 0: all. Empty: all layers see all
  bool scale_attention = true;   // by 1/sqrt(head_dim)
  bool scale_by_inverse_layer = false;
  ReferenceRope rope;
  bool operator==(const ReferenceConfig&) const = default;

  // The settings that a family fixes (gpt2: biases, kv heads, …), sizes as above.
  static ReferenceConfig of_family(const std::string& model_type);
  static bool supports(const std::string& model_type);
  bool is_gpt2() const { return model_type == "gpt2"; }

  // Both spellings: rope_parameters and dtype, or rope_theta, rope_scaling and torch_dtype.
  static ReferenceConfig from_json(const nlohmann::json& json);
  // In the newer spelling. Throws InternalError for settings that the family's config.json cannot express.
  nlohmann::json to_json() const;
};

}  // namespace megalith::testing
