// The table of families, and the way from a config.json to a ModelConfig: model_type selects a family, its `read` fills
// the fields, problems() checks them together, and the JSON itself is kept for exports.
#include "megalith/model/families/family.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/model/families/audio.h"
#include "megalith/model/families/decoder_internal.h"
#include "megalith/model/families/file_form_internal.h"
#include "megalith/model/families/scores.h"

namespace megalith::model {

namespace {

// The names for messages: "deepseek_v3, glm4_moe, … and seed_oss".
std::string supported() {
  std::vector<std::string> names;
  for (const Family& each : families()) names.push_back(each.model_type);
  return list_in_words(names, names.size());
}

// Sizes far beyond those of any model are mistakes, which would only be noticed after minutes of loops over layers, or
// when memory runs out.
void refuse_absurd_sizes(const io::JsonFields& fields) {
  constexpr int64_t kMostLayers = 16384, kMostExperts = 65536, kWidest = 1 << 24, kMostPositions = int64_t{1} << 40;
  const std::pair<const char*, int64_t> limits[] = {{"num_hidden_layers", kMostLayers},
                                                    {"n_layer", kMostLayers},
                                                    {"num_nextn_predict_layers", kMostLayers},
                                                    {"mtp_num_hidden_layers", kMostLayers},
                                                    {"num_experts", kMostExperts},
                                                    {"n_routed_experts", kMostExperts},
                                                    {"num_local_experts", kMostExperts},
                                                    {"hidden_size", kWidest},
                                                    {"n_embd", kWidest},
                                                    {"intermediate_size", kWidest},
                                                    {"n_inner", kWidest},
                                                    {"moe_intermediate_size", kWidest},
                                                    {"shared_expert_intermediate_size", kWidest},
                                                    {"num_attention_heads", kWidest},
                                                    {"n_head", kWidest},
                                                    {"num_key_value_heads", kWidest},
                                                    {"head_dim", kWidest},
                                                    {"vocab_size", int64_t{1} << 28},
                                                    {"max_position_embeddings", kMostPositions},
                                                    {"n_positions", kMostPositions}};
  const io::Json& whole = fields.whole();
  for (const auto& [key, most] : limits) {
    const auto found = whole.find(key);
    if (found != whole.end() && found->is_number() && found->get<double>() > static_cast<double>(most))
      fields.refuse(key, fmt::format("be at most {}: no model is larger", most));
  }
}

// The same for the text model inside a configuration of several.
void refuse_absurd_text_sizes(const io::JsonFields& fields) {
  const auto thinker = fields.optional_object("thinker_config");
  if (const auto text = (thinker ? *thinker : fields).optional_object("text_config")) refuse_absurd_sizes(*text);
}

}  // namespace

// Built on first use, which is safe from any thread. A new family is one function and one entry here.
const std::vector<Family>& families() {
  static const std::vector<Family> all{deepseek_v3_family(),    glm4_moe_family(),     gpt2_family(),
                                       llama_family(),          megatron_gpt_family(), mistral_family(),
                                       mixtral_family(),        qwen2_family(),        qwen2_5_vl_family(),
                                       qwen2_moe_family(),      qwen2_vl_family(),     qwen3_family(),
                                       qwen3_5_family(),        qwen3_5_moe_family(),  qwen3_5_moe_text_family(),
                                       qwen3_5_text_family(),   qwen3_moe_family(),    qwen3_next_family(),
                                       qwen3_omni_moe_family(), qwen3_vl_family(),     qwen3_vl_moe_family(),
                                       seed_oss_family()};
  return all;
}

const Family& family(std::string_view model_type) {
  for (const Family& each : families())
    if (each.model_type == model_type) return each;
  throw ConfigError(fmt::format("models of type \"{}\" are not supported; use one of {}", model_type, supported()));
}

// A program's own family wins over one of the library with the same model_type.
const Family* find_family(const ModelConfig& config) {
  if (config.own_family) return config.own_family.get();
  const auto found =
      std::ranges::find_if(families(), [&](const Family& each) { return each.model_type == config.family; });
  return found == families().end() ? nullptr : &*found;
}

const Family& family_of(const ModelConfig& config) {
  const Family* found = find_family(config);
  return found ? *found : family(config.family);
}

ModelConfig read_model_config(const io::JsonFile& file, const std::shared_ptr<const Family>& own) {
  const io::JsonFields fields = file.fields();
  check<DataError>(fields.has("model_type"),
                   "{} has no \"model_type\", so it is not a model configuration; supported types are {}", file.name(),
                   supported());
  const auto type = fields.required<std::string>("model_type");
  // With an own family, folders of other families can still be read: a reward model beside a Llama policy, for
  // instance.
  const bool is_own = own && own->model_type == type;
  refuse_absurd_sizes(fields);
  refuse_absurd_text_sizes(fields);
  ModelConfig config = (is_own ? *own : family(type)).read(fields);
  config.family = type;
  if (is_own) config.own_family = own;
  config.source = std::make_shared<const io::Json>(fields.whole());
  read_scores(fields, config);
  const auto found = problems(config);
  check<DataError>(found.empty(), "{}: {}", file.name(), fmt::join(found, "; "));
  return config;
}

ModelConfig read_model_config(const std::filesystem::path& folder, const std::shared_ptr<const Family>& own) {
  ModelConfig config = read_model_config(io::read_json_file(folder / "config.json"), own);
  config.folder = std::filesystem::absolute(folder);
  const auto read_form = family_of(config).read_form;
  // A folder without weights describes a model that is to be initialised.
  if (read_form && hf::has_weight_files(folder)) read_form(hf::WeightFiles(folder), config);
  return config;
}

namespace {

// Returns the names in one form, with the experts one by one.
hf::NameMap names_in(const FileForm& form, const ModelConfig& config) {
  const Family& known = family_of(config);
  hf::NameMap map = known.names;
  if (config.mtp_layers > 0 && known.add_mtp_names) known.add_mtp_names(config, map);
  rename_parts(form, map);
  if (config.vision) {
    for (hf::NameRule& rule : vision_rules(*config.vision, known.vision_files, form.vision_prefix))
      map.rules.push_back(std::move(rule));
    std::erase_if(map.carried, [](const std::string& pattern) { return pattern.ends_with("visual.*"); });
  }
  if (config.audio) {
    for (hf::NameRule& rule : audio_rules(*config.audio, form.audio_prefix)) map.rules.push_back(std::move(rule));
    std::erase_if(map.carried, [](const std::string& pattern) { return pattern.ends_with("audio_tower.*"); });
  }
  if (config.num_labels > 0) {
    std::erase_if(map.rules, [](const hf::NameRule& rule) { return rule.ours[0] == "head.weight"; });
    map.rules.push_back({kScoreWeight, {kScoreWeight}});
  }
  if (config.tied_embeddings)
    map.ignored.push_back(form.head_prefix + "lm_head.weight");  // some files repeat the embedding
  return map;
}

}  // namespace

// Files of qwen2_vl and qwen2_5_vl have the names of the modules of transformers before 4.52, and newer versions still
// write them so.
hf::NameMap module_names(const ModelConfig& config) {
  FileForm form = config.form;
  if (form.vision_prefix == "visual.") {
    form.model_prefix = "model.language_model.";
    form.vision_prefix = "model.visual.";
  }
  return names_in(form, config);
}

hf::NameMap name_map(const ModelConfig& config) {
  hf::NameMap map = names_in(config.form, config);
  stack_experts(config.form, map);
  map.scale_block = config.scale_block;
  return map;
}

}  // namespace megalith::model
