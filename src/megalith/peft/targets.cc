// The rules of peft 0.21. Modules are looked at first; target_parameters matter where no module is selected.
#include "megalith/peft/targets.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/text.h"

namespace megalith::peft {

namespace {

constexpr std::string_view kWeightEnd = ".weight", kBiasEnd = ".bias";
constexpr std::string_view kMixtralBlock = ".block_sparse_moe.", kBlock = ".mlp.";

// Whether a list has the name itself, or its end after a dot.
bool lists(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::any_of(names, [&](const std::string& end) {
    return name == end ||
           (name.size() > end.size() && name.ends_with(end) && name[name.size() - end.size() - 1] == '.');
  });
}

// The number of a module's layer: without a pattern, the first number that follows two words.
std::optional<int64_t> layer_of(std::string_view module, const AdapterConfig& config) {
  for (const NamePattern& pattern : config.layers_pattern)
    if (const auto number = pattern.number_in(module)) return number;
  if (!config.layers_pattern.empty()) return std::nullopt;
  const std::vector<std::string> words = split(module, '.');
  for (size_t i = 2; i + 1 < words.size(); ++i)
    if (const auto number = parse_int(words[i])) return number;
  return std::nullopt;
}

// The first pattern that matches counts, in the order of the file.
template <typename T>
T by_pattern(const std::vector<std::pair<NamePattern, T>>& patterns, std::string_view name, T otherwise) {
  for (const auto& [pattern, value] : patterns)
    if (pattern.matches(name)) return value;
  return otherwise;
}

Update update_named(std::string module, const std::string& name, const AdapterConfig& config) {
  const int64_t rank = by_pattern(config.rank_pattern, name, config.rank);
  return {std::move(module), rank, config.scale(rank, by_pattern(config.alpha_pattern, name, config.alpha))};
}

// "model.layers.3.mlp.experts.17.up_proj.weight" -> the place of the number 17; npos where there is none.
size_t expert_number(std::string_view tensor) {
  constexpr std::string_view kExpertsWord = ".experts.";
  const size_t found = tensor.find(kExpertsWord);
  if (found == std::string_view::npos) return found;
  const size_t begin = found + kExpertsWord.size(), end = tensor.find('.', begin);
  if (end == std::string_view::npos || !parse_int(std::string(tensor.substr(begin, end - begin))))
    return std::string_view::npos;
  return begin;
}

}  // namespace

std::string module_end(const std::string& module) {
  size_t dot = module.rfind('.');
  while (dot != std::string::npos && dot > 0 && parse_int(module.substr(dot + 1, module.find('.', dot + 1) - dot - 1)))
    dot = module.rfind('.', dot - 1);
  return module.substr(dot == std::string::npos ? 0 : dot + 1);
}

bool is_kernel(const hf::NameMap& names, const std::string& tensor) {
  const std::string pattern = hf::pattern_of(tensor).pattern;
  const auto rule = std::ranges::find(names.rules, pattern, &hf::NameRule::theirs);
  return rule != names.rules.end() && !rule->kernel.empty();
}

bool is_excluded(std::string_view module, const AdapterConfig& config) {
  return config.exclude_pattern ? config.exclude_pattern->matches(module) : lists(config.exclude_modules, module);
}

bool is_target(std::string_view module, const AdapterConfig& config) {
  if (module.empty() || is_excluded(module, config)) return false;
  if (config.target_pattern) return config.target_pattern->matches(module);
  if (std::ranges::find(config.target_modules, module) != config.target_modules.end()) return true;
  if (!lists(config.target_modules, module)) return false;
  if (config.layers_to_transform.empty()) return true;
  const auto layer = layer_of(module, config);
  return layer && std::ranges::find(config.layers_to_transform, *layer) != config.layers_to_transform.end();
}

std::string transformers_name(std::string name) {
  if (const size_t found = name.find(kMixtralBlock); found != std::string::npos)
    name.replace(found, kMixtralBlock.size(), kBlock);
  return name;
}

std::string file_name(std::string name, const hf::NameMap& names) {
  const bool mixtral = std::ranges::any_of(
      names.rules, [](const hf::NameRule& rule) { return rule.theirs.find(kMixtralBlock) != std::string::npos; });
  if (const size_t found = name.find(kBlock); mixtral && found != std::string::npos)
    name.replace(found, kBlock.size(), kMixtralBlock);
  return name;
}

std::string newer_name(std::string name, const hf::NameMap& names) {
  constexpr std::string_view kModel = "model.", kLanguage = "model.language_model.", kTower = "model.visual.",
                             kOldTower = "visual.";
  const bool nested =
      std::ranges::any_of(names.rules, [&](const hf::NameRule& rule) { return rule.theirs.starts_with(kLanguage); });
  if (!nested || name.starts_with(kLanguage) || name.starts_with(kTower)) return name;
  if (name.starts_with(kOldTower)) return std::string(kModel) + name;
  return name.starts_with(kModel) ? std::string(kLanguage) + name.substr(kModel.size()) : name;
}

AdapterConfig with_newer_names(AdapterConfig config, const hf::NameMap& names) {
  for (auto* list :
       {&config.target_modules, &config.modules_to_save, &config.target_parameters, &config.exclude_modules})
    for (std::string& name : *list) name = newer_name(std::move(name), names);
  const auto rename_keys = [&](auto& patterns) {
    for (auto& [pattern, value] : patterns) pattern = NamePattern::end(newer_name(pattern.text(), names));
  };
  rename_keys(config.rank_pattern);
  rename_keys(config.alpha_pattern);
  return config;
}

std::optional<ExpertTensor> expert_tensor(const hf::NameMap& names, const std::string& tensor) {
  const size_t number = expert_number(tensor);
  if (number == std::string::npos) return std::nullopt;
  const std::string pattern = hf::pattern_of(tensor).pattern;
  const auto rule = std::ranges::find(names.rules, pattern, &hf::NameRule::theirs);
  if (rule == names.rules.end()) return std::nullopt;
  const auto is = [&](std::string_view kind) { return rule->ours[0].ends_with(kind); };
  ExpertTensor found{.gate_or_up = is(".gate.weight") || is(".up.weight"), .up = is(".up.weight")};
  found.parameter = transformers_name(tensor.substr(0, number)) + (found.gate_or_up ? "gate_up_proj" : "down_proj");
  const size_t word = tensor.find('.', number) + 1;
  found.projection = tensor.substr(word, tensor.rfind('.') - word);
  return found;
}

std::optional<Update> update_of_file(const hf::NameMap& names, const std::string& tensor, const AdapterConfig& config) {
  if (!tensor.ends_with(kWeightEnd) || is_kernel(names, tensor)) return std::nullopt;
  const std::string module = tensor.substr(0, tensor.size() - kWeightEnd.size());
  for (const std::string& name : {module, transformers_name(module)})
    if (is_target(name, config)) return update_named(module, name, config);
  if (config.target_parameters.empty()) return std::nullopt;
  const auto expert = expert_tensor(names, tensor);
  const std::string parameter = expert ? expert->parameter : transformers_name(tensor);
  if (!lists(config.target_parameters, parameter)) return std::nullopt;
  Update update = update_named(module, parameter, config);
  if (!expert || !expert->gate_or_up || config.stacked_experts) return update;
  check<ConfigError>(update.rank % 2 == 0,
                     "{}: the rank of {} is {}; it is the sum of the ranks of gate and up, which are equal",
                     kConfigName, parameter, update.rank);
  update.rank /= 2;
  return update;
}

std::optional<Update> update_of(const hf::NameMap& names, std::string_view ours, const AdapterConfig& config) {
  const auto theirs = hf::their_name(names, ours);
  return theirs ? update_of_file(names, *theirs, config) : std::nullopt;
}

bool trains_bias_of_file(const hf::NameMap& names, const std::string& tensor, const AdapterConfig& config) {
  if (config.biases == TrainedBiases::kNone || !tensor.ends_with(kBiasEnd)) return false;
  if (config.biases == TrainedBiases::kAll) return true;
  const std::string module = tensor.substr(0, tensor.size() - kBiasEnd.size());
  return update_of_file(names, module + std::string(kWeightEnd), config).has_value();
}

bool trains_bias(const hf::NameMap& names, std::string_view ours, const AdapterConfig& config) {
  if (config.biases == TrainedBiases::kNone) return false;
  const auto theirs = hf::their_name(names, ours);
  return theirs && trains_bias_of_file(names, *theirs, config);
}

}  // namespace megalith::peft
