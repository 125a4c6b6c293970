// Reading is strict where a field changes the result: an adapter with DoRA or ranks per module would silently compute
// something else, so it is refused, with all such fields in one message. Unknown fields are kept: to_json() writes them
// back, so that an adapter survives a round trip through Megalith with all that other tools have stored in it.
#include "megalith/peft/adapter_config.h"

#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/io/json_reader.h"

namespace megalith::peft {

namespace {

namespace fs = std::filesystem;

// Fields that change what an adapter computes. They are not supported unless empty: null, false, {} or [].
constexpr const char* kMustBeEmpty[] = {"use_dora",
                                        "rank_pattern",
                                        "alpha_pattern",
                                        "layer_replication",
                                        "layers_to_transform",
                                        "target_parameters",
                                        "lora_bias",
                                        "use_qalora",
                                        "trainable_token_indices",
                                        "exclude_modules",
                                        "alora_invocation_tokens",
                                        "use_bdlora"};

// The forms in which peft writes "not used".
bool is_empty(const io::Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  return value.is_null() || ((value.is_object() || value.is_array()) && value.empty());
}

// Returns a list of names; the field may also be a single string. peft reads such a string as a pattern.
std::vector<std::string> names(const io::JsonFields& fields, const char* key) {
  const io::Json* value = fields.value(key);
  if (value == nullptr) return {};
  if (!value->is_string()) return fields.required<std::vector<std::string>>(key);
  const auto text = value->get<std::string>();
  if (text.find_first_of("*()[]|\\^$+?") != std::string::npos)
    fields.refuse(key, "be a list of module names; patterns are not supported");
  return {text};
}

// Throws unless the adapter is plain or rank-stabilized LoRA without biases.
void check_supported(const io::JsonFields& fields) {
  const auto kind = fields.required<std::string>("peft_type");
  check<ConfigError>(kind == "LORA", "{}: peft_type is {}; only LORA is supported", fields.file_name(), kind);
  std::vector<std::string> problems;
  for (const char* key : kMustBeEmpty)
    if (const io::Json* value = fields.value(key); value != nullptr && !is_empty(*value))
      problems.push_back(fmt::format("\"{}\" is {}", key, value->dump()));
  if (const auto bias = fields.optional<std::string>("bias"); bias && *bias != "none")
    problems.push_back(fmt::format("\"bias\" is \"{}\"", *bias));
  check<ConfigError>(problems.empty(), "{}: {}; plain and rank-stabilised LoRA without these is supported",
                     fields.file_name(), fmt::join(problems, ", "));
}

// The fields that peft writes for a new adapter, with its defaults.
io::Json fresh_json() {
  return {{"alpha_pattern", io::Json::object()},
          {"auto_mapping", nullptr},
          {"base_model_name_or_path", nullptr},
          {"bias", "none"},
          {"fan_in_fan_out", false},
          {"inference_mode", true},
          {"init_lora_weights", true},
          {"layer_replication", nullptr},
          {"layers_pattern", nullptr},
          {"layers_to_transform", nullptr},
          {"lora_alpha", 0},
          {"lora_dropout", 0.0},
          {"modules_to_save", nullptr},
          {"peft_type", "LORA"},
          {"r", 0},
          {"rank_pattern", io::Json::object()},
          {"revision", nullptr},
          {"target_modules", io::Json::array()},
          {"task_type", "CAUSAL_LM"},
          {"use_dora", false},
          {"use_rslora", false}};
}

}  // namespace

// rsLoRA (arXiv:2312.03732) divides by √r, so that the update's size does not shrink with the rank.
double AdapterConfig::scale() const {
  const auto r = static_cast<double>(rank);
  return use_rslora ? alpha / std::sqrt(r) : alpha / r;
}

AdapterConfig read_adapter_config(const fs::path& folder) {
  const io::JsonFile file = io::read_json_file(folder / kConfigName);
  const io::JsonFields fields = file.fields();
  check_supported(fields);
  AdapterConfig config;
  config.rank = fields.positive<int64_t>("r");
  config.alpha = fields.positive<double>("lora_alpha");
  config.dropout = fields.optional<double>("lora_dropout").value_or(0);
  if (config.dropout < 0 || config.dropout >= 1) fields.refuse("lora_dropout", "be at least 0 and below 1");
  config.use_rslora = fields.optional<bool>("use_rslora").value_or(false);
  config.target_modules = names(fields, "target_modules");
  config.modules_to_save = names(fields, "modules_to_save");
  if (config.target_modules.empty() && config.modules_to_save.empty())
    fields.refuse("target_modules", "name at least one module");
  config.base_model = fields.optional<std::string>("base_model_name_or_path").value_or("");
  config.source = std::make_shared<const io::Json>(file.root());
  return config;
}

std::string to_json(const AdapterConfig& config) {
  // Only fields that Megalith may have changed are set; everything else goes back as it came.
  io::Json json = config.source ? *config.source : fresh_json();
  if (!config.base_model.empty()) json["base_model_name_or_path"] = config.base_model;
  json["r"] = config.rank;
  // lora_alpha is an integer in most files; keep it one where possible.
  if (config.alpha == std::floor(config.alpha))
    json["lora_alpha"] = static_cast<int64_t>(config.alpha);
  else
    json["lora_alpha"] = config.alpha;
  json["lora_dropout"] = config.dropout;
  json["use_rslora"] = config.use_rslora;
  json["target_modules"] = config.target_modules;
  json["modules_to_save"] = config.modules_to_save.empty() ? io::Json(nullptr) : io::Json(config.modules_to_save);
  json["inference_mode"] = true;
  return json.dump(2) + "\n";
}

}  // namespace megalith::peft
