// The options are translated to config.json twice: in the keys of megatron_gpt, which expresses everything they can
// say, and in those of the nearest Hugging Face family, which may not. The readers of the two families turn both into
// a ModelConfig, as for a downloaded model; if these do not differ, the model is of the Hugging Face family. So no rule
// says which options a family supports: its reader does. Before that, every option that no layer supports is reported,
// all problems in one message.
#include "megalith/run/resolve/model_from_options.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/model/families/family.h"
#include "megalith/run/resolve/family_json_internal.h"
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

void check_layer(const LayerConfig& layer, ModelProblems& problems) {
  const int activations = int{on(layer.swiglu)} + int{on(layer.squared_relu)} + int{on(layer.quick_geglu)};
  problems.require(activations <= 1, "swiglu, squared_relu and quick_geglu exclude each other; keep one");
  problems.require(!layer.window_attn_skip_freq || layer.window_size,
                   "window_attn_skip_freq {} needs window_size: it says which layers have no window",
                   layer.window_attn_skip_freq.value_or(""));
}

// Rotary positions of attention that is not latent, and the options that only they have.
void check_positions(const TrainingArguments& args, ModelProblems& problems) {
  const PositionConfig& position = args.position;
  const bool yarn = position.type == PositionEmbedding::kYarn,
             rotary = yarn || position.type == PositionEmbedding::kRope;
  problems.require(!on(position.use_rope_scaling) || !yarn,
                   "use_rope_scaling and position_embedding_type yarn are two ways to scale; keep one");
  problems.require(
      !position.rotary_interpolation_factor || (!on(position.use_rope_scaling) && !yarn),
      "rotary_seq_len_interpolation_factor goes with plain rope only; leave out use_rope_scaling and yarn");
  const double part = position.rotary_percent.value_or(1);
  problems.require(rotary || (part == 1 && !on(position.rotary_interleaved) && !on(position.use_rope_scaling)),
                   "rotary_percent, rotary_interleaved and use_rope_scaling are about rotary positions: set"
                   " position_embedding_type rope, or leave them out");
  const int head = args.shape.kv_channels.value_or(0), rotated = static_cast<int>(head * part);
  problems.require(
      !rotary || (rotated >= 2 && rotated % 2 == 0),
      "rotary_percent {} of the {} channels of a head rotates {}; channels rotate in pairs, so it must give"
      " an even number of at least 2",
      part, head, rotated);
}

// Latent attention has fixed parts: everything that Megatron's has, except biases and layers without norms.
void check_latent(const TrainingArguments& args, ModelProblems& problems) {
  const LayerConfig& layer = args.layer;
  const PositionConfig& position = args.position;
  constexpr const char* kWhat = "multi_latent_attention";
  problems.require(layer.normalization == Normalization::kRmsNorm,
                   "{} has norms that are RMSNorm: set normalization RMSNorm", kWhat);
  problems.require(position.type == PositionEmbedding::kRope,
                   "{} has rotary positions: set position_embedding_type rope (rope_type yarn stretches them)", kWhat);
  problems.require(!on(layer.add_bias_linear) && !on(layer.add_qkv_bias),
                   "{} has no biases: set disable_bias_linear and leave out add_qkv_bias", kWhat);
  problems.require(on(layer.qk_layernorm), "{} has norms on its latents: set qk_layernorm", kWhat);
  problems.require(!on(position.use_rope_scaling) && !position.rotary_interpolation_factor,
                   "{} stretches positions by rope_type yarn: leave out use_rope_scaling and"
                   " rotary_seq_len_interpolation_factor",
                   kWhat);
  problems.require(position.rotary_percent.value_or(1) == 1 && !on(position.rotary_interleaved),
                   "{} rotates all of its qk_pos_emb_head_dim channels, in neighboring pairs: leave out rotary_percent"
                   " and rotary_interleaved",
                   kWhat);
  problems.require(!layer.window_size && !on(layer.attention_output_gate),
                   "{} has neither windows nor a gate: leave out window_size and attention_output_gate", kWhat);
}

void check_supported(const TrainingArguments& args, ModelProblems& problems) {
  check_layer(args.layer, problems);
  if (args.mla.multi_latent_attention)
    check_latent(args, problems);
  else
    check_positions(args, problems);
  if (args.moe.num_experts) problems.add(expert_problems(args));
  problems.throw_if_any();
}

// Ids that a tokenizer does not have are written as null, as transformers does.
io::Json vocabulary_json(const ModelVocabulary& vocabulary) {
  const auto id = [](const std::optional<int64_t>& value) { return value ? io::Json(*value) : io::Json(nullptr); };
  return {{"bos_token_id", id(vocabulary.bos_id)},
          {"eos_token_id", id(vocabulary.eos_id)},
          {"pad_token_id", id(vocabulary.pad_id)}};
}

// Returns the format of exported weights, in torch's words.
const char* dtype_name(const config::PrecisionConfig& precision) {
  return precision.bf16 ? "bfloat16" : precision.fp16 ? "float16" : "float32";
}

// Adds the keys that do not depend on the family, and reads the result.
model::ModelConfig read_json(io::Json json, const TrainingArguments& args, const ModelVocabulary& vocabulary) {
  json["architectures"] = {model::family(json["model_type"].get<std::string>()).architecture};
  json["vocab_size"] = args.shape.padded_vocab_size.value_or(static_cast<int>(vocabulary.size));
  json["tie_word_embeddings"] = !on(args.shape.untie_embeddings);
  json["initializer_range"] = args.layer.init_method_std.value_or(0.02);
  json["torch_dtype"] = dtype_name(args.precision);
  json.update(vocabulary_json(vocabulary));
  // Reading the JSON back runs the same checks as for a downloaded config.json.
  return model::read_model_config(io::JsonFile(std::move(json), "the options of the model"));
}

}  // namespace

model::ModelConfig model_from_options(const TrainingArguments& args, const ModelVocabulary& vocabulary) {
  ModelProblems problems;
  check_given(args, problems);
  problems.throw_if_any();  // the checks below read these options
  check_supported(args, problems);
  model::ModelConfig config = read_json(megatron_gpt_json(args), args, vocabulary);
  if (const std::string family = nearest_family(args); !family.empty()) {
    model::ModelConfig nearest = read_json(family_json(args, family), args, vocabulary);
    if (model::differences(config, nearest).empty()) config = std::move(nearest);
  }
  return model_overrides(args).applied_to(std::move(config));
}

std::string export_note(const TrainingArguments& args, const model::ModelConfig& config) {
  if (config.family != "megatron_gpt") return "";
  const std::string nearest = nearest_family(args);
  const ModelVocabulary vocabulary{.size = config.vocab_size, .bos_id = {}, .eos_id = {}, .pad_id = {}};
  const auto lacking = nearest.empty() ? std::vector<std::string>{"heads"}
                                       : model::differences(read_json(megatron_gpt_json(args), args, vocabulary),
                                                            read_json(family_json(args, nearest), args, vocabulary));
  return fmt::format(
      "no Hugging Face family holds this model ({} has other {}): it is saved as megatron_gpt, which megalith train,"
      " score, generate and convert read and transformers does not",
      nearest.empty() ? "gpt2" : nearest, list_in_words(lacking));
}

}  // namespace megalith::run
