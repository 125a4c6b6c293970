// Reading is strict where a field changes the result: an adapter with layer_replication would silently compute
// something else, so it is refused, with all such fields in one message. Unknown fields are kept: to_json() writes them
// back, so that an adapter survives a round trip through Megalith with all that other tools have stored in it.
#include "megalith/peft/adapter_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/hf/safetensors_file.h"
#include "megalith/io/json_reader.h"

namespace megalith::peft {

namespace {

namespace fs = std::filesystem;

// Fields that change what an adapter computes. They are not supported unless empty: null, false, {} or [].
constexpr const char* kMustBeEmpty[] = {
    "layer_replication", "lora_bias",    "use_qalora",  "trainable_token_indices", "alora_invocation_tokens",
    "use_bdlora",        "arrow_config", "kasa_config", "monteclora_config",       "velora_config"};

// The forms in which peft writes "not used".
bool is_empty(const io::Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  return value.is_null() || ((value.is_object() || value.is_array()) && value.empty());
}

// Returns a list of names; std::nullopt where the field is a string, which peft reads as a regular expression.
std::optional<std::vector<std::string>> names(const io::JsonFields& fields, const char* key) {
  const io::Json* value = fields.value(key);
  if (value == nullptr) return std::vector<std::string>();
  if (value->is_string()) return std::nullopt;
  return fields.required<std::vector<std::string>>(key);
}

// Returns the list of a field that may also hold a single value.
template <typename T>
std::vector<T> one_or_more(const io::JsonFields& fields, const char* key) {
  const io::Json* value = fields.value(key);
  if (value == nullptr) return {};
  if (!value->is_array()) return {fields.required<T>(key)};
  return fields.required<std::vector<T>>(key);
}

// Reads {"pattern": number, …} in the order of the file.
template <typename T>
std::vector<std::pair<NamePattern, T>> patterns(const io::JsonFields& fields, const char* key) {
  std::vector<std::pair<NamePattern, T>> found;
  const auto object = fields.optional_object(key);
  if (!object) return found;
  for (const auto& [name, value] : object->whole().items())
    found.emplace_back(NamePattern::end(name), object->positive<T>(name));
  return found;
}

// Reads what selects modules, and their ranks.
void read_targets(const io::JsonFields& fields, AdapterConfig& config) {
  if (auto listed = names(fields, "target_modules"))
    config.target_modules = std::move(*listed);
  else if (const auto text = fields.required<std::string>("target_modules"); text == "all-linear")
    config.target_modules = {text};
  else
    config.target_pattern = NamePattern::whole(text);
  if (auto listed = names(fields, "exclude_modules"))
    config.exclude_modules = std::move(*listed);
  else
    config.exclude_pattern = NamePattern::whole(fields.required<std::string>("exclude_modules"));
  config.target_parameters = one_or_more<std::string>(fields, "target_parameters");
  config.modules_to_save = one_or_more<std::string>(fields, "modules_to_save");
  config.layers_to_transform = one_or_more<int64_t>(fields, "layers_to_transform");
  for (const std::string& pattern : one_or_more<std::string>(fields, "layers_pattern"))
    if (!pattern.empty()) config.layers_pattern.push_back(NamePattern::layer(pattern));
  config.rank_pattern = patterns<int64_t>(fields, "rank_pattern");
  config.alpha_pattern = patterns<double>(fields, "alpha_pattern");
  if (config.target_modules.empty() && !config.target_pattern && config.target_parameters.empty() &&
      config.modules_to_save.empty())
    fields.refuse("target_modules", "name at least one module");
}

TrainedBiases read_biases(const io::JsonFields& fields) {
  const auto text = fields.optional<std::string>("bias").value_or("none");
  if (text == "all") return TrainedBiases::kAll;
  if (text == "lora_only") return TrainedBiases::kTargets;
  if (text != "none") fields.refuse("bias", "be all, lora_only or none");
  return TrainedBiases::kNone;
}

// The ways to start an adapter that change the base model, apart from PiSSA: such an adapter belongs to weights that no
// file has.
constexpr std::string_view kChangesBase[] = {"olora", "corda", "lora_ga", "loftq"};
constexpr std::string_view kPissa = "pissa", kPissaIterations = "pissa_niter_";

// Reads init_lora_weights, which matters only where the base is changed.
std::optional<PrincipalStart> read_start(const io::JsonFields& fields) {
  const io::Json* value = fields.value("init_lora_weights");
  if (value == nullptr || !value->is_string()) return std::nullopt;
  const auto text = value->get<std::string>();
  if (text == kPissa) return PrincipalStart{};
  if (!text.starts_with(kPissa)) return std::nullopt;
  const auto number =
      text.starts_with(kPissaIterations) ? parse_int(text.substr(kPissaIterations.size())) : std::nullopt;
  if (!number || *number < 0 || *number > std::numeric_limits<int>::max())
    fields.refuse("init_lora_weights", "be pissa, or pissa_niter_N with a number of iterations");
  return PrincipalStart{static_cast<int>(*number)};
}

// Whether the file beside the configuration has one pair of factors for all experts of a layer.
bool has_stacked_experts(const fs::path& folder) {
  const fs::path path = folder / fmt::format("{}.safetensors", kWeightsStem);
  if (!fs::is_regular_file(path)) return false;
  const hf::SafetensorsFile file(path);
  return std::ranges::any_of(
      file.tensors(), [](const hf::TensorInfo& tensor) { return tensor.name.ends_with(".experts.lora_A.weight"); });
}

// Sets a field of a file that is usually empty, and leaves the way in which the file says "empty" as it is.
void set_list(io::Json& json, const char* key, const io::Json& value) {
  if (!value.empty())
    json[key] = value;
  else if (json.contains(key) && !is_empty(json[key]))
    json[key] = nullptr;
}

// alpha is an integer in most files; keep it one where possible.
io::Json alpha_json(double alpha) {
  return alpha == std::floor(alpha) ? io::Json(static_cast<int64_t>(alpha)) : io::Json(alpha);
}

// Throws unless the adapter is LoRA, with or without rank stabilization and weight decomposition.
void check_supported(const io::JsonFields& fields) {
  const auto kind = fields.required<std::string>("peft_type");
  check<ConfigError>(kind == "LORA", "{}: peft_type is {}; only LORA is supported", fields.file_name(), kind);
  std::vector<std::string> problems;
  for (const char* key : kMustBeEmpty)
    if (const io::Json* value = fields.value(key); value != nullptr && !is_empty(*value))
      problems.push_back(fmt::format("\"{}\" is {}", key, value->dump()));
  if (const io::Json* start = fields.value("init_lora_weights"); start != nullptr && start->is_string())
    if (std::ranges::find(kChangesBase, start->get<std::string>()) != std::end(kChangesBase))
      problems.push_back(fmt::format(
          "\"init_lora_weights\" is {}, which changes the base model (convert the adapter with peft: save_pretrained"
          " with path_initial_model_for_weight_conversion)",
          start->dump()));
  check<ConfigError>(problems.empty(), "{}: {}; LoRA, use_rslora and use_dora without these are supported",
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
double AdapterConfig::scale(int64_t r, double a) const {
  const auto divisor = static_cast<double>(r);
  return a / (use_rslora ? std::sqrt(divisor) : divisor);
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
  config.use_dora = fields.optional<bool>("use_dora").value_or(false);
  config.pissa = read_start(fields);
  config.biases = read_biases(fields);
  read_targets(fields, config);
  config.stacked_experts = has_stacked_experts(folder);
  config.base_model = fields.optional<std::string>("base_model_name_or_path").value_or("");
  config.source = std::make_shared<const io::Json>(file.root());
  return config;
}

// The scale alpha/r stays if alpha doubles with r; alpha/√r, if it grows by √2.
AdapterConfig without_start(AdapterConfig config) {
  const double factor = config.use_rslora ? std::sqrt(2.0) : 2;
  config.pissa.reset();
  config.rank *= 2;
  config.alpha *= factor;
  for (auto& [pattern, rank] : config.rank_pattern) rank *= 2;
  for (auto& [pattern, alpha] : config.alpha_pattern) alpha *= factor;
  return config;
}

std::string to_json(const AdapterConfig& config) {
  // Only fields that Megalith may have changed are set; everything else goes back as it came.
  io::Json json = config.source ? *config.source : fresh_json();
  if (config.scores_sequences) json["task_type"] = "SEQ_CLS";
  if (!config.base_model.empty()) json["base_model_name_or_path"] = config.base_model;
  json["r"] = config.rank;
  json["lora_alpha"] = alpha_json(config.alpha);
  json["lora_dropout"] = config.dropout;
  json["use_rslora"] = config.use_rslora;
  if (config.use_dora || json.contains("use_dora")) json["use_dora"] = config.use_dora;
  if (!config.source && config.biases == TrainedBiases::kAll) json["bias"] = "all";
  if (config.pissa)
    json["init_lora_weights"] = config.pissa->iterations < 0
                                    ? std::string(kPissa)
                                    : fmt::format("{}{}", kPissaIterations, config.pissa->iterations);
  else if (json.contains("init_lora_weights") && json["init_lora_weights"].is_string() &&
           json["init_lora_weights"].get<std::string>().starts_with(kPissa))
    json["init_lora_weights"] = true;
  json["target_modules"] =
      config.target_pattern ? io::Json(config.target_pattern->text()) : io::Json(config.target_modules);
  set_list(json, "target_parameters", config.target_parameters);
  set_list(json, "exclude_modules",
           config.exclude_pattern ? io::Json(config.exclude_pattern->text()) : io::Json(config.exclude_modules));
  // A number or a list in use stays as it came.
  if (config.layers_to_transform.empty()) set_list(json, "layers_to_transform", io::Json::array());
  if (config.layers_pattern.empty()) set_list(json, "layers_pattern", io::Json::array());
  json["rank_pattern"] = json["alpha_pattern"] = io::Json::object();
  for (const auto& [pattern, rank] : config.rank_pattern) json["rank_pattern"][pattern.text()] = rank;
  for (const auto& [pattern, alpha] : config.alpha_pattern) json["alpha_pattern"][pattern.text()] = alpha_json(alpha);
  json["modules_to_save"] = config.modules_to_save.empty() ? io::Json(nullptr) : io::Json(config.modules_to_save);
  json["inference_mode"] = true;
  return json.dump(2) + "\n";
}

}  // namespace megalith::peft
