// Reading the configurations of Llama-like families. Keys have drifted over the versions of transformers (rope_theta
// with rope_scaling became rope_parameters, torch_dtype became dtype, layer_types replaced use_sliding_window): every
// reader takes all spellings. Values that Megalith cannot represent are refused by name and never ignored.
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/model/families/decoder_internal.h"

namespace megalith::model {

namespace {

// The values of rope_type; "type" is its name in older files.
ops::RopeScaling rope_scaling(const io::JsonFields& rope, std::string_view type) {
  static const std::map<std::string_view, ops::RopeScaling> kinds{{"default", ops::RopeScaling::kNone},
                                                                  {"linear", ops::RopeScaling::kLinear},
                                                                  {"dynamic", ops::RopeScaling::kDynamic},
                                                                  {"yarn", ops::RopeScaling::kYarn},
                                                                  {"llama3", ops::RopeScaling::kLlama3}};
  // Old files of models that see: positions with several coordinates, frequencies as they are.
  if (type == "mrope" && rope.has("mrope_section")) return ops::RopeScaling::kNone;
  const auto kind = kinds.find(type);
  if (kind == kinds.end())
    rope.refuse(rope.has("rope_type") ? "rope_type" : "type", "be default, linear, dynamic, yarn or llama3");
  return kind->second;
}

// Reads the keys that both spellings share from `rope`.
void read_rope_scaling(const io::JsonFields& rope, int64_t max_positions, ops::RopeSettings& settings) {
  const auto type = rope.optional<std::string>("rope_type");
  settings.scaling = rope_scaling(rope, type ? *type : rope.optional<std::string>("type").value_or("default"));
  if (settings.scaling == ops::RopeScaling::kNone) return;
  settings.original_positions = rope.optional_positive<int64_t>("original_max_position_embeddings").value_or(0);
  // Some yarn configurations leave out the factor; it follows from the two lengths.
  if (settings.scaling == ops::RopeScaling::kYarn && !rope.has("factor") && settings.original_positions > 0) {
    settings.factor = static_cast<double>(max_positions) / static_cast<double>(settings.original_positions);
  } else {
    settings.factor = rope.positive<double>("factor");
  }
  // llama3 is the only kind that requires the length of the original training and its two bounds of frequencies.
  if (settings.scaling == ops::RopeScaling::kLlama3) {
    settings.original_positions = rope.positive<int64_t>("original_max_position_embeddings");
    settings.low_freq_factor = rope.positive<double>("low_freq_factor");
    settings.high_freq_factor = rope.positive<double>("high_freq_factor");
  }
  // Others assume that max_position_embeddings is the length before scaling.
  if (settings.original_positions == 0) settings.original_positions = max_positions;
  if (settings.scaling != ops::RopeScaling::kYarn) return;
  settings.beta_fast = rope.optional_positive<double>("beta_fast").value_or(settings.beta_fast);
  settings.beta_slow = rope.optional_positive<double>("beta_slow").value_or(settings.beta_slow);
  settings.truncate = rope.optional<bool>("truncate").value_or(true);
  settings.mscale = rope.optional<double>("mscale");
  settings.mscale_all_dim = rope.optional<double>("mscale_all_dim");
  settings.attention_factor = rope.optional_positive<double>("attention_factor");
}

}  // namespace

// AWQ, GPTQ, and fp8 with other scales than those of blocks are refused by name. Weights of bitsandbytes have no such
// scales (hf/four_bit_files.h, hf/eight_bit_files.h).
std::optional<hf::ScaleBlock> read_scale_block(const io::JsonFields& config) {
  if (!config.has("quantization_config")) return std::nullopt;
  const io::Json& given = *config.value("quantization_config");
  const auto field = [&](const char* key) { return given.contains(key) ? given.at(key) : io::Json(); };
  const io::Json method = field("quant_method"), block = field("weight_block_size"), format = field("fmt");
  if (method == "bitsandbytes" && (field("load_in_4bit") == true || field("load_in_8bit") == true)) return std::nullopt;
  const bool is_block = block.is_array() && block.size() == 2 && block[0].is_number_integer() &&
                        block[1].is_number_integer() && block[0] > 0 && block[1] > 0;
  if (method != "fp8" || !is_block || (!format.is_null() && format != "e4m3"))
    throw ConfigError(fmt::format(
        "{}: the weights are quantized (\"quantization_config\" with quant_method {}); beside F32, F16 and BF16 weights"
        " only those of quant_method \"fp8\", fmt \"e4m3\" and a weight_block_size such as [128, 128], and those of"
        " bitsandbytes in 4 or 8 bits, can be read. Use the original weights of the model",
        config.file_name(), io::json_in_words(method)));
  return hf::ScaleBlock{block[0].get<int64_t>(), block[1].get<int64_t>()};
}

at::ScalarType read_dtype(const io::JsonFields& config) {
  static const std::map<std::string, at::ScalarType, std::less<>> types{
      {"float32", at::kFloat}, {"bfloat16", at::kBFloat16}, {"float16", at::kHalf}, {"float64", at::kDouble}};
  const char* key = config.has("dtype") ? "dtype" : "torch_dtype";
  auto text = config.optional<std::string>(key).value_or("float32");
  if (text.starts_with("torch.")) text = text.substr(6);  // old files write "torch.bfloat16"
  const auto type = types.find(text);
  if (type == types.end()) config.refuse(key, "be float32, bfloat16 or float16");
  return type->second;
}

// hidden_act; several names stand for one function: gelu_new, gelu_fast and gelu_pytorch_tanh are all the tanh formula.
ops::Activation read_activation(const io::JsonFields& config, std::string_view key) {
  static const std::map<std::string, ops::Activation, std::less<>> kinds{
      {"silu", ops::Activation::kSilu},
      {"swish", ops::Activation::kSilu},
      {"gelu", ops::Activation::kGelu},
      {"gelu_new", ops::Activation::kGeluTanh},
      {"gelu_fast", ops::Activation::kGeluTanh},
      {"gelu_pytorch_tanh", ops::Activation::kGeluTanh},
      {"quick_gelu", ops::Activation::kQuickGelu},
      {"relu", ops::Activation::kRelu},
      {"relu2", ops::Activation::kSquaredRelu}};
  const auto kind = kinds.find(config.required<std::string>(key));
  if (kind == kinds.end()) config.refuse(key, "be silu, gelu, gelu_new, gelu_pytorch_tanh, quick_gelu, relu or relu2");
  return kind->second;
}

ops::RopeSettings read_rope(const io::JsonFields& config, int64_t head_dim, int64_t max_positions) {
  ops::RopeSettings settings;
  double partial = config.optional_positive<double>("partial_rotary_factor").value_or(1);
  if (const auto rope = config.optional_object("rope_parameters")) {
    settings.theta = rope->optional_positive<double>("rope_theta").value_or(settings.theta);
    partial = rope->optional_positive<double>("partial_rotary_factor").value_or(partial);
    read_rope_scaling(*rope, max_positions, settings);
  } else {
    settings.theta = config.optional_positive<double>("rope_theta").value_or(settings.theta);
    if (const auto scaling = config.optional_object("rope_scaling"))
      read_rope_scaling(*scaling, max_positions, settings);
  }
  settings.rotary_dim = static_cast<int64_t>(static_cast<double>(head_dim) * partial);
  return settings;
}

// layer_types wins if it is there, as in newer files; otherwise the layers from max_window_layers on have
// a window, provided that use_sliding_window is true. 28 is transformers' default for max_window_layers.
std::vector<int64_t> read_windows(const io::JsonFields& config, int64_t layers) {
  const int64_t window = config.optional<int64_t>("sliding_window").value_or(0);  // qwen2_moe writes 0 for none
  if (window < 0) config.refuse("sliding_window", "be positive, or 0 or null for none");
  std::vector<int64_t> windows(static_cast<size_t>(layers), 0);
  if (config.has("layer_types")) {
    const auto kinds = config.required<std::vector<std::string>>("layer_types");
    if (static_cast<int64_t>(kinds.size()) != layers)
      config.refuse("layer_types", fmt::format("have an entry for each of the {} layers", layers));
    for (size_t i = 0; i < kinds.size(); ++i) {
      if (kinds[i] == "sliding_attention") {
        if (window == 0) config.refuse("sliding_window", "be set when a layer's type is sliding_attention");
        windows[i] = window;
      } else if (kinds[i] != "full_attention") {
        config.refuse("layer_types", "hold full_attention or sliding_attention only");
      }
    }
    return windows;
  }
  if (window == 0 || !config.optional<bool>("use_sliding_window").value_or(false)) return {};
  const auto first = config.optional<int64_t>("max_window_layers").value_or(28);
  for (int64_t i = std::max<int64_t>(first, 0); i < layers; ++i) windows[static_cast<size_t>(i)] = window;
  return windows;
}

// Keys without a value_or must be there; the defaults are those of transformers' LlamaConfig where families agree.
ModelConfig read_decoder(const io::JsonFields& config) {
  ModelConfig c;
  c.scale_block = read_scale_block(config);
  c.hidden_size = config.positive<int64_t>("hidden_size");
  c.num_layers = config.positive<int64_t>("num_hidden_layers");
  c.num_heads = config.positive<int64_t>("num_attention_heads");
  c.num_kv_heads = config.optional_positive<int64_t>("num_key_value_heads").value_or(c.num_heads);
  c.head_dim = config.optional_positive<int64_t>("head_dim").value_or(c.hidden_size / c.num_heads);
  if (c.head_dim == 0) config.refuse("num_attention_heads", "be at most hidden_size");
  // Models that have experts in every layer may leave it out.
  const bool experts_alone = config.has("moe_intermediate_size") && !config.has("intermediate_size");
  c.mlp_width = config.positive<int64_t>(experts_alone ? "moe_intermediate_size" : "intermediate_size");
  c.vocab_size = config.positive<int64_t>("vocab_size");
  c.max_positions = config.positive<int64_t>("max_position_embeddings");
  c.norm_epsilon = config.optional_positive<double>("rms_norm_eps").value_or(1e-6);
  c.activation = read_activation(config, "hidden_act");
  c.rope = read_rope(config, c.head_dim, c.max_positions);
  c.tied_embeddings = config.optional<bool>("tie_word_embeddings").value_or(false);
  c.attention_dropout = config.optional<double>("attention_dropout").value_or(0);
  c.init_std = config.optional_positive<double>("initializer_range").value_or(0.02);
  c.dtype = read_dtype(config);
  return c;
}

// Rules for tensors that a model lacks (biases, q_norm) do no harm: a rule applies to tensors that exist. inv_freq is
// a buffer that old versions of transformers saved.
hf::NameMap decoder_names() {
  const auto layer = [](std::string theirs, std::string ours) {
    return hf::NameRule{"model.layers.{}." + theirs, {"layers.{}." + ours}};
  };
  return {.rules = {{"model.embed_tokens.weight", {"embedding.weight"}},
                    layer("input_layernorm.weight", "attention_norm.weight"),
                    layer("self_attn.q_proj.weight", "attention.q.weight"),
                    layer("self_attn.k_proj.weight", "attention.k.weight"),
                    layer("self_attn.v_proj.weight", "attention.v.weight"),
                    layer("self_attn.q_proj.bias", "attention.q.bias"),
                    layer("self_attn.k_proj.bias", "attention.k.bias"),
                    layer("self_attn.v_proj.bias", "attention.v.bias"),
                    layer("self_attn.q_norm.weight", "attention.q_norm.weight"),
                    layer("self_attn.k_norm.weight", "attention.k_norm.weight"),
                    layer("self_attn.o_proj.weight", "attention.o.weight"),
                    layer("self_attn.o_proj.bias", "attention.o.bias"),
                    layer("post_attention_layernorm.weight", "mlp_norm.weight"),
                    layer("mlp.gate_proj.weight", "mlp.gate.weight"),
                    layer("mlp.up_proj.weight", "mlp.up.weight"),
                    layer("mlp.down_proj.weight", "mlp.down.weight"),
                    layer("mlp.gate_proj.bias", "mlp.gate.bias"),
                    layer("mlp.up_proj.bias", "mlp.up.bias"),
                    layer("mlp.down_proj.bias", "mlp.down.bias"),
                    {"model.norm.weight", {"final_norm.weight"}},
                    {"lm_head.weight", {"head.weight"}}},
          .ignored = {"*.rotary_emb.inv_freq"}};
}

std::vector<hf::NameRule> mtp_layer_rules(const hf::NameMap& names, const std::string& prefix) {
  constexpr std::string_view kTheirs = "model.layers.{}.", kOurs = "layers.{}.";
  std::vector<hf::NameRule> rules;
  for (hf::NameRule rule : names.rules) {
    if (!rule.theirs.starts_with(kTheirs)) continue;
    // model.layers.{}.X -> PREFIX.X, and layers.{}.X -> mtp.{}.layer.X.
    rule.theirs = prefix + rule.theirs.substr(kTheirs.size());
    for (std::string& ours : rule.ours) ours = "mtp.{}.layer." + ours.substr(kOurs.size());
    rules.push_back(std::move(rule));
  }
  return rules;
}

// {+61} numbers layers from 61: mtp.0 is model.layers.61 in DeepSeek-V3, which has 61 layers. Files repeat the
// embedding and the head in each of these layers; exports write them as copies, imports read the originals.
void add_numbered_mtp_names(const ModelConfig& config, hf::NameMap& names) {
  const std::string prefix = fmt::format("model.layers.{{+{}}}.", config.num_layers);
  std::vector<hf::NameRule> added = mtp_layer_rules(names, prefix);
  added.push_back({prefix + "enorm.weight", {"mtp.{}.embedding_norm.weight"}});
  added.push_back({prefix + "hnorm.weight", {"mtp.{}.hidden_norm.weight"}});
  added.push_back({prefix + "eh_proj.weight", {"mtp.{}.projection.weight"}});
  added.push_back({prefix + "shared_head.norm.weight", {"mtp.{}.norm.weight"}});
  for (hf::NameRule& rule : names.rules)
    for (int64_t layer = config.num_layers; layer < config.num_layers + config.mtp_layers; ++layer) {
      const std::string& ours = rule.ours[0];
      if (ours == "embedding.weight") rule.copies.push_back(fmt::format("model.layers.{}.embed_tokens.weight", layer));
      if (ours == (config.tied_embeddings ? "embedding.weight" : "head.weight"))
        rule.copies.push_back(fmt::format("model.layers.{}.shared_head.head.weight", layer));
    }
  names.rules.insert(names.rules.end(), added.begin(), added.end());
}

}  // namespace megalith::model
