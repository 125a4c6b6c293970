// The options are translated to the config.json of a Hugging Face family, which the reader of that family then turns
// into a ModelConfig: the same path as for a downloaded model, so a model from options can be exported and loaded
// again. Before that, every option that the family cannot express is reported, all problems in one message.
#include "megalith/run/resolve/model_from_options.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/model/families/family.h"
#include "megalith/run/resolve/experts_from_options_internal.h"
#include "megalith/run/resolve/model_settings.h"

namespace megalith::run {

namespace {

using config::LayerConfig;
using config::Normalization;
using config::PositionConfig;
using config::PositionEmbedding;
using config::TrainingArguments;

// Collects problems, so that one message shows all of them.
class ModelProblems {
 public:
  void add(std::vector<std::string> more) { found_.insert(found_.end(), more.begin(), more.end()); }
  template <typename... Args>
  void require(bool ok, fmt::format_string<Args...> text, Args&&... args) {
    if (!ok) found_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  void throw_if_any() const { check<ConfigError>(found_.empty(), "{}", fmt::join(found_, "\n")); }

 private:
  std::vector<std::string> found_;
};

// Returns whether the MLP has a gate, and so three matrices.
bool gated(const LayerConfig& layer) { return on(layer.swiglu) || on(layer.quick_geglu); }

// Requires the options without which no model can be built.
void check_given(const TrainingArguments& args, ModelProblems& problems) {
  const config::ModelShapeConfig& shape = args.shape;
  const auto given = [&problems](const auto& value, const char* name) {
    problems.require(value.has_value(), "{} is not given; a model from scratch needs it", name);
  };
  given(shape.num_layers, "num_layers");
  given(shape.hidden_size, "hidden_size");
  given(shape.num_attention_heads, "num_attention_heads");
  given(shape.max_position_embeddings, "max_position_embeddings");
  given(args.layer.normalization, "normalization");
  given(args.layer.norm_epsilon, "layernorm_epsilon");
  given(args.position.type, "position_embedding_type");
}

// Reports options that no family supports.
void check_known_parts(const TrainingArguments& args, ModelProblems& problems) {
  constexpr const char* kNoFamily = "no family of Megalith's holds such a model";
  const LayerConfig& layer = args.layer;
  problems.require(!args.moe.num_experts || !args.mla.multi_latent_attention,
                   "num_experts {} with multi_latent_attention: such a model is not made from options; start from a"
                   " deepseek_v3 folder",
                   args.moe.num_experts.value_or(0));
  problems.require(args.shape.mtp_num_layers.value_or(0) == 0 || args.mla.multi_latent_attention,
                   "mtp_num_layers {}: of the families that options describe only deepseek_v3 has such layers; set"
                   " multi_latent_attention, or leave it out",
                   args.shape.mtp_num_layers.value_or(0));
  problems.require(!on(layer.attention_output_gate), "attention_output_gate: {}", kNoFamily);
  problems.require(!on(args.position.rotary_interleaved), "rotary_interleaved: {}; leave it out", kNoFamily);
  const int activations = int{on(layer.swiglu)} + int{on(layer.squared_relu)} + int{on(layer.quick_geglu)};
  problems.require(activations <= 1, "swiglu, squared_relu and quick_geglu exclude each other; keep one");
}

// With LayerNorm the family is gpt2; reports everything that a gpt2 checkpoint cannot hold.
void check_gpt2(const TrainingArguments& args, ModelProblems& problems) {
  const config::ModelShapeConfig& shape = args.shape;
  constexpr const char* kWhy = "normalization LayerNorm makes a gpt2 model";
  problems.require(args.position.type == PositionEmbedding::kLearnedAbsolute,
                   "{}, which has learned positions: set position_embedding_type learned_absolute, or normalization"
                   " RMSNorm",
                   kWhy);
  problems.require(!gated(args.layer), "{}, whose MLP is not gated: leave out {}, or set normalization RMSNorm", kWhy,
                   on(args.layer.swiglu) ? "swiglu" : "quick_geglu");
  problems.require(on(args.layer.add_bias_linear),
                   "{}, which has biases: leave out disable_bias_linear, or set normalization RMSNorm", kWhy);
  problems.require(!on(args.layer.qk_layernorm), "{}, which has no norms on queries and keys: leave out qk_layernorm",
                   kWhy);
  problems.require(shape.num_query_groups == shape.num_attention_heads,
                   "{}, whose heads do not share keys and values: leave out group_query_attention", kWhy);
  problems.require(shape.kv_channels.value_or(0) * shape.num_attention_heads.value_or(0) == shape.hidden_size,
                   "{}, whose {} heads divide its hidden_size {}: leave out kv_channels {}", kWhy,
                   shape.num_attention_heads.value_or(0), shape.hidden_size.value_or(0), shape.kv_channels.value_or(0));
}

// The same for RMSNorm: the llama and qwen families.
void check_decoder(const TrainingArguments& args, ModelProblems& problems) {
  const LayerConfig& layer = args.layer;
  constexpr const char* kWhy = "normalization RMSNorm makes a llama or qwen model";
  const auto type = args.position.type;
  problems.require(type == PositionEmbedding::kRope || type == PositionEmbedding::kYarn,
                   "{}, which has rotary positions: set position_embedding_type rope, or normalization LayerNorm",
                   kWhy);
  problems.require(gated(layer), "{}, whose MLP is gated: set swiglu, or normalization LayerNorm", kWhy);
  problems.require(args.position.rotary_percent.value_or(1) == 1,
                   "{}, whose heads rotate as a whole: rotary_percent {} must be 1", kWhy,
                   args.position.rotary_percent.value_or(1));
  problems.require(!on(args.position.use_rope_scaling) || type != PositionEmbedding::kYarn,
                   "use_rope_scaling and position_embedding_type yarn are two ways to scale; keep one");
  problems.require(
      !args.position.rotary_interpolation_factor ||
          (!on(args.position.use_rope_scaling) && type != PositionEmbedding::kYarn),
      "rotary_seq_len_interpolation_factor goes with plain rope only; leave out use_rope_scaling and yarn");
  problems.require(!on(layer.qk_layernorm) || (!on(layer.add_bias_linear) && !on(layer.add_qkv_bias)),
                   "qk_layernorm makes a qwen3 model, which has no biases: set disable_bias_linear and leave out"
                   " add_qkv_bias");
}

// The same for latent attention: deepseek_v3.
void check_latent(const TrainingArguments& args, ModelProblems& problems) {
  const LayerConfig& layer = args.layer;
  constexpr const char* kWhy = "multi_latent_attention makes a deepseek_v3 model";
  problems.require(args.layer.normalization == Normalization::kRmsNorm,
                   "{}, whose norms are RMSNorm: set normalization"
                   " RMSNorm",
                   kWhy);
  problems.require(args.position.type == PositionEmbedding::kRope,
                   "{}, which has rotary positions: set position_embedding_type rope (and rope_type yarn to stretch"
                   " them)",
                   kWhy);
  problems.require(on(layer.swiglu), "{}, whose MLP is gated by SiLU: set swiglu", kWhy);
  problems.require(!on(layer.add_bias_linear) && !on(layer.add_qkv_bias),
                   "{}, which has no biases: set disable_bias_linear and leave out add_qkv_bias", kWhy);
  problems.require(on(layer.qk_layernorm), "{}, which has norms on its latents: set qk_layernorm", kWhy);
  problems.require(!on(args.position.use_rope_scaling) && !args.position.rotary_interpolation_factor,
                   "{}, whose positions are stretched by rope_type yarn: leave out use_rope_scaling and"
                   " rotary_seq_len_interpolation_factor",
                   kWhy);
}

// Ids that a tokenizer does not have are written as null, as transformers does.
io::Json vocabulary_json(const ModelVocabulary& vocabulary) {
  const auto id = [](const std::optional<int64_t>& value) { return value ? io::Json(*value) : io::Json(nullptr); };
  return {{"bos_token_id", id(vocabulary.bos_id)},
          {"eos_token_id", id(vocabulary.eos_id)},
          {"pad_token_id", id(vocabulary.pad_id)}};
}

// GPT-2's names. Its config.json has no sizes of heads or groups: check_gpt2 has excluded what it cannot say.
io::Json gpt2_json(const TrainingArguments& args) {
  const char* activation = on(args.layer.squared_relu)   ? "relu2"
                           : args.fusion.bias_activation ? "gelu_new"  // the reference's fused kernel: tanh
                                                         : "gelu";
  const double hidden_dropout = args.layer.hidden_dropout.value_or(0);
  return {{"model_type", "gpt2"},
          {"n_embd", *args.shape.hidden_size},
          {"n_layer", *args.shape.num_layers},
          {"n_head", *args.shape.num_attention_heads},
          {"n_inner", *args.shape.ffn_hidden_size},
          {"n_positions", *args.shape.max_position_embeddings},
          {"activation_function", activation},
          {"layer_norm_epsilon", *args.layer.norm_epsilon},
          {"embd_pdrop", hidden_dropout},
          {"resid_pdrop", hidden_dropout},
          {"attn_pdrop", args.layer.attention_dropout.value_or(0)}};
}

// Uses the reference's constants for use_rope_scaling.
io::Json llama3_scaling(const PositionConfig& position) {
  return {{"rope_type", "llama3"},
          {"factor", position.rope_scaling_factor.value_or(8)},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 8192}};
}

// YaRN (Peng et al., 2023) in the terms of transformers.
io::Json yarn_scaling(const PositionConfig& position) {
  const double factor = position.rotary_scaling_factor.value_or(1), mscale = position.mscale.value_or(1),
               all_dim = position.mscale_all_dim.value_or(0);
  io::Json scaling{{"rope_type", "yarn"},
                   {"factor", factor},
                   {"original_max_position_embeddings", position.original_max_position_embeddings.value_or(4096)},
                   {"beta_fast", position.beta_fast.value_or(32)},
                   {"beta_slow", position.beta_slow.value_or(1)}};
  // transformers uses an mscale of 1 unless mscale and mscale_all_dim are both given, so their effect is written out.
  const auto temperature = [factor](double scale) { return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1; };
  if (mscale != 1 || all_dim != 0) scaling["attention_factor"] = temperature(mscale) / temperature(all_dim);
  return scaling;
}

// deepseek_v3's names. first_k_dense_replace covers all layers, because experts with latent attention are refused.
io::Json latent_json(const TrainingArguments& args) {
  const PositionConfig& position = args.position;
  const config::MlaConfig& mla = args.mla;
  io::Json json{{"model_type", "deepseek_v3"},
                {"hidden_size", *args.shape.hidden_size},
                {"num_hidden_layers", *args.shape.num_layers},
                {"first_k_dense_replace", *args.shape.num_layers},
                {"num_attention_heads", *args.shape.num_attention_heads},
                {"num_key_value_heads", *args.shape.num_attention_heads},
                {"q_lora_rank", mla.q_lora_rank ? io::Json(*mla.q_lora_rank) : io::Json(nullptr)},
                {"kv_lora_rank", mla.kv_lora_rank.value_or(32)},
                {"qk_nope_head_dim", mla.qk_head_dim.value_or(128)},
                {"qk_rope_head_dim", mla.qk_pos_emb_head_dim.value_or(64)},
                {"v_head_dim", mla.v_head_dim.value_or(128)},
                {"intermediate_size", *args.shape.ffn_hidden_size},
                {"max_position_embeddings", *args.shape.max_position_embeddings},
                {"num_nextn_predict_layers", args.shape.mtp_num_layers.value_or(0)},
                {"rms_norm_eps", *args.layer.norm_epsilon},
                {"hidden_act", "silu"},
                {"attention_bias", false},
                {"attention_dropout", args.layer.attention_dropout.value_or(0)},
                {"rope_interleave", true},
                {"rope_theta", position.rotary_base.value_or(10000)}};
  if (position.rope_type != config::RopeType::kYarn) return json;
  json["rope_scaling"] = yarn_scaling(position);
  // DeepSeek's attention also scales its softmax by mscale_all_dim, so both are written beside their ratio.
  json["rope_scaling"]["mscale"] = position.mscale.value_or(1);
  json["rope_scaling"]["mscale_all_dim"] = position.mscale_all_dim.value_or(0);
  return json;
}

//   norms on queries and keys   qkv bias only   family
//   yes                         -               qwen3
//   no                          yes             qwen2
//   no                          no              llama (whose attention_bias and mlp_bias cover add_bias_linear)
const char* decoder_family(const LayerConfig& layer) {
  if (on(layer.qk_layernorm)) return "qwen3";
  return on(layer.add_qkv_bias) && !on(layer.add_bias_linear) ? "qwen2" : "llama";
}

// The names that llama and the qwen families share.
io::Json decoder_json(const TrainingArguments& args) {
  const PositionConfig& position = args.position;
  const std::string family = decoder_family(args.layer);
  io::Json json{{"model_type", family},
                {"hidden_size", *args.shape.hidden_size},
                {"num_hidden_layers", *args.shape.num_layers},
                {"num_attention_heads", *args.shape.num_attention_heads},
                {"num_key_value_heads", *args.shape.num_query_groups},
                {"head_dim", *args.shape.kv_channels},
                {"intermediate_size", *args.shape.ffn_hidden_size},
                {"max_position_embeddings", *args.shape.max_position_embeddings},
                {"rms_norm_eps", *args.layer.norm_epsilon},
                {"hidden_act", on(args.layer.swiglu) ? "silu" : "quick_gelu"},
                {"attention_dropout", args.layer.attention_dropout.value_or(0)},
                {"rope_theta", position.rotary_base.value_or(10000)}};
  if (family == "llama") json["attention_bias"] = json["mlp_bias"] = on(args.layer.add_bias_linear);
  if (on(position.use_rope_scaling)) json["rope_scaling"] = llama3_scaling(position);
  if (position.type == PositionEmbedding::kYarn) json["rope_scaling"] = yarn_scaling(position);
  if (const auto factor = position.rotary_interpolation_factor)
    json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", static_cast<double>(*factor)}};
  return json;
}

// Returns the format of exported weights, in torch's words.
const char* dtype_name(const config::PrecisionConfig& precision) {
  return precision.bf16 ? "bfloat16" : precision.fp16 ? "float16" : "float32";
}

}  // namespace

model::ModelConfig model_from_options(const TrainingArguments& args, const ModelVocabulary& vocabulary) {
  const bool layer_norm = args.layer.normalization == Normalization::kLayerNorm;
  ModelProblems problems;
  check_given(args, problems);
  check_known_parts(args, problems);
  problems.throw_if_any();  // the checks below read these options
  // The norm and the kind of attention determine the family, so the others' rules are never reported.
  const bool latent = args.mla.multi_latent_attention;
  if (latent)
    check_latent(args, problems);
  else if (layer_norm)
    check_gpt2(args, problems);
  else
    check_decoder(args, problems);
  problems.require(!args.moe.num_experts || !layer_norm,
                   "num_experts {}: the families with experts have RMSNorm; set normalization RMSNorm",
                   args.moe.num_experts.value_or(0));
  if (args.moe.num_experts && !layer_norm) problems.add(expert_problems(args));
  problems.throw_if_any();

  io::Json json = latent ? latent_json(args) : layer_norm ? gpt2_json(args) : decoder_json(args);
  if (args.moe.num_experts) add_experts(json, args);
  // Fields that all families have.
  json["architectures"] = {model::family(json["model_type"].get<std::string>()).architecture};
  json["vocab_size"] = args.shape.padded_vocab_size.value_or(static_cast<int>(vocabulary.size));
  json["tie_word_embeddings"] = !on(args.shape.untie_embeddings);
  json["initializer_range"] = args.layer.init_method_std.value_or(0.02);
  json["torch_dtype"] = dtype_name(args.precision);
  json.update(vocabulary_json(vocabulary));
  // Reading the JSON back runs the same checks as for a downloaded config.json.
  return model_overrides(args).applied_to(
      model::read_model_config(io::JsonFile(std::move(json), "the options of the model")));
}

}  // namespace megalith::run
