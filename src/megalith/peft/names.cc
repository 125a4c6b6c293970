// Three kinds of names meet here: ours ("layers.3.attention.q.weight"), those of the base model's files
// ("model.layers.3.self_attn.q_proj.weight") and peft's ("base_model.model.<module>.lora_A.weight"). The map of the
// family leads from the first to the second, fixed prefixes and endings from there to the third. Targets are matched
// against module names of the files, since these are the names that users of peft know.
#include "megalith/peft/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/peft/targets.h"

namespace megalith::peft {

namespace {

constexpr std::string_view kWeight = ".weight", kBias = ".bias";
constexpr std::string_view kModel = "base_model.model.";  // peft's wrappers around the model
constexpr const char *kEmbedding = "embedding.weight", *kHead = "head.weight", *kScores = "score.weight";
constexpr const char* kHeadModule = "lm_head";  // the same in every family

// "layers.3.mlp.up.weight" with "lora_a" -> "layers.3.mlp.up.lora_a".
std::string renamed(std::string_view weight, const char* ending) {
  check(weight.ends_with(kWeight), "{} is not a weight", weight);
  return fmt::format("{}.{}", weight.substr(0, weight.size() - kWeight.size()), ending);
}

std::string without_last_word(std::string_view name) { return std::string(name.substr(0, name.rfind('.'))); }

// Whether modules_to_save has an end of the module's name, or of that of a module around it.
bool is_named(std::string_view module, const AdapterConfig& config) {
  for (std::string_view outer = module; !outer.empty();) {
    if (std::ranges::any_of(config.modules_to_save, [&](const std::string& name) { return outer.ends_with(name); }))
      return true;
    const size_t dot = outer.rfind('.');
    outer = outer.substr(0, dot == std::string_view::npos ? 0 : dot);
  }
  return false;
}

// Returns whether "all" targets the weight: every linear layer except the head and routers.
bool is_linear(const Weight& weight) {
  return weight.use != nn::WeightUse::kOther && weight.use != nn::WeightUse::kRouter &&
         weight.use != nn::WeightUse::kLookup && weight.name != kHead;
}

bool is_all(const std::string& name) { return name == "all" || name == "all-linear"; }

// Ends a message about an unknown name: the similar names, then all of them.
std::string suggestion(const std::string& name, const std::set<std::string>& known) {
  const std::vector<std::string> all(known.begin(), known.end());
  const auto close = nearest(name, all);
  return close.empty() ? fmt::format("known are {}", list_in_words(all, 40))
                       : fmt::format("did you mean {}? Known are {}", list_in_words(close), list_in_words(all, 40));
}

// Returns the ends of the names of the modules of all weights that `wanted` selects.
template <typename Wanted>
std::set<std::string> words_of(const hf::NameMap& names, const std::vector<Weight>& weights, const Wanted& wanted) {
  std::set<std::string> words;
  for (const Weight& weight : weights)
    if (wanted(weight))
      if (const std::string module = module_of(names, weight.name); !module.empty()) words.insert(module_end(module));
  return words;
}

// Every target must match at least one weight that can have an update; a typing mistake would otherwise train nothing.
void check_targets(const AdapterConfig& config, const hf::NameMap& names, const std::vector<Weight>& weights) {
  const auto has_update = [](const Weight& weight) { return weight.use != nn::WeightUse::kOther; };
  for (const std::string& target : config.target_modules) {
    AdapterConfig one;
    one.target_modules = {target};
    const bool known = std::ranges::any_of(weights, [&](const Weight& weight) {
      return has_update(weight) && update_of(names, weight.name, one).has_value();
    });
    check<ConfigError>(known, "lora_target: the model has no linear layer {}; {}, or all for every linear layer",
                       target, suggestion(target, words_of(names, weights, has_update)));
  }
}

// The same for what only files have: an expression for modules, and tensors.
void check_patterns(const AdapterConfig& config, const hf::NameMap& names, const std::vector<Weight>& weights) {
  const auto matched = [&](const AdapterConfig& one) {
    return std::ranges::any_of(weights, [&](const Weight& weight) {
      return weight.use != nn::WeightUse::kOther && update_of(names, weight.name, one).has_value();
    });
  };
  AdapterConfig one = config;
  one.target_modules.clear();
  one.target_parameters.clear();
  check<ConfigError>(!config.target_pattern || matched(one),
                     "target_modules: no linear layer of the model matches the expression {}",
                     config.target_pattern ? config.target_pattern->text() : "");
  one.target_pattern.reset();
  for (const std::string& parameter : config.target_parameters) {
    one.target_parameters = {parameter};
    check<ConfigError>(matched(one), "target_parameters: the model has no tensor {} that can have an update",
                       parameter);
  }
}

// Checks modules_to_save: every name must be the end of some module (several matches are fine), and a tied embedding
// and head must be saved together.
void check_saved(AdapterConfig& config, const hf::NameMap& names, const std::vector<Weight>& weights) {
  const bool tied = std::ranges::none_of(
      weights, [](const Weight& weight) { return weight.name == kHead || weight.name == kScores; });
  const auto head = std::ranges::find(config.modules_to_save, kHeadModule);
  const bool saves_embedding = is_saved(module_of(names, kEmbedding), config);
  check<ConfigError>(
      !tied || saves_embedding == (head != config.modules_to_save.end()),
      "additional_target: the embedding and the head of this model are one tensor (tied); name both {} and"
      " {}, or neither",
      module_end(module_of(names, kEmbedding)), kHeadModule);
  for (const std::string& name : config.modules_to_save) {
    if (tied && name == kHeadModule) continue;
    AdapterConfig one;
    one.modules_to_save = {name};
    const bool known = std::ranges::any_of(
        weights, [&](const Weight& weight) { return is_saved(module_of(names, weight.name), one); });
    check<ConfigError>(known, "additional_target: the model has no module {}; {}", name,
                       suggestion(name, words_of(names, weights, [](const Weight&) { return true; })));
  }
}

}  // namespace

std::string a_name(std::string_view weight) { return renamed(weight, "lora_a"); }
std::string b_name(std::string_view weight) { return renamed(weight, "lora_b"); }
std::string m_name(std::string_view weight) { return renamed(weight, "lora_m"); }

std::string module_of(const hf::NameMap& names, std::string_view ours) {
  const auto theirs = hf::their_name(names, ours);
  return theirs ? without_last_word(*theirs) : std::string();
}

bool is_saved(std::string_view module, const AdapterConfig& config) {
  if (config.modules_to_save.empty()) return false;
  const std::string newer = transformers_name(std::string(module) + ".");  // mixtral's files call its block otherwise
  return is_named(module, config) || is_named(std::string_view(newer).substr(0, newer.size() - 1), config);
}

bool trains_whole(const hf::NameMap& names, std::string_view ours, const AdapterConfig& config) {
  return is_saved(module_of(names, ours), config) || trains_bias(names, ours, config);
}

std::string written_name(const hf::NameMap& names, const std::string& whole, const AdapterConfig& config) {
  if (!whole.starts_with(kModel)) return whole;
  // peft finds A and B under the names of the files, but whole modules only under those of transformers.
  if (whole.find(".lora_") == std::string::npos && !whole.ends_with(kBias)) return transformers_name(whole);
  if (!whole.ends_with(kBias)) return whole;
  const std::string module = without_last_word(whole.substr(kModel.size()));
  const bool wrapped = update_of_file(names, module + std::string(kWeight), config) && !is_saved(module, config);
  return wrapped ? fmt::format("{}{}.base_layer{}", kModel, module, kBias) : whole;
}

UpdateNames update_names(const std::string& tensor) {
  UpdateNames names;
  names.whole = std::string(kModel) + tensor;
  if (!tensor.ends_with(kWeight)) return names;
  const std::string module = without_last_word(names.whole);
  names.a = module + ".lora_A.weight";
  names.b = module + ".lora_B.weight";
  names.magnitude = module + ".lora_magnitude_vector";
  names.lookup_a = module + ".lora_embedding_A";
  names.lookup_b = module + ".lora_embedding_B";
  return names;
}

hf::NameMap adapter_names(const hf::NameMap& base) {
  hf::NameMap names;
  for (const hf::NameRule& rule : base.rules) {
    const UpdateNames theirs = update_names(rule.theirs);
    hf::NameRule whole = rule;
    whole.theirs = theirs.whole;
    // The copies of embedding and head that multi-token-prediction layers have in files are not part of an adapter.
    whole.copies.clear();
    names.rules.push_back(std::move(whole));
    const auto is_weight = [](const std::string& name) { return name.ends_with(kWeight); };
    if (!std::ranges::all_of(rule.ours, is_weight) || rule.channelwise || theirs.a.empty()) continue;
    // peft keeps an embedding's A as [r, v], ours is [v, r] because rows of it are looked up: transposed.
    const bool lookup = rule.ours[0] == kEmbedding;
    names.rules.push_back(
        {.theirs = lookup ? theirs.lookup_a : theirs.a, .ours = {a_name(rule.ours[0])}, .transposed = lookup});
    hf::NameRule b{.theirs = lookup ? theirs.lookup_b : theirs.b, .ours = {}};
    for (const std::string& ours : rule.ours) b.ours.push_back(b_name(ours));
    names.rules.push_back(std::move(b));
    if (lookup) continue;
    hf::NameRule magnitude{.theirs = theirs.magnitude, .ours = {}};
    for (const std::string& ours : rule.ours) magnitude.ours.push_back(m_name(ours));
    names.rules.push_back(std::move(magnitude));
  }
  return names;
}

AdapterConfig with_targets(AdapterConfig config, const hf::NameMap& names, const std::vector<Weight>& weights) {
  check<ConfigError>(config.rank > 0, "lora_rank is {}; it must be at least 1", config.rank);
  // A set, so that "all,q_proj" names q_proj once, and files are the same for every order.
  std::set<std::string> targets;
  for (const std::string& target : config.target_modules) {
    if (is_all(target))
      targets.merge(words_of(names, weights, [&](const Weight& weight) {
        const std::string file = hf::their_name(names, weight.name).value_or("");
        return is_linear(weight) && !is_kernel(names, file) && !is_excluded(module_of(names, weight.name), config);
      }));
    else
      targets.insert(target);
  }
  config.target_modules.assign(targets.begin(), targets.end());
  check_targets(config, names, weights);
  check_patterns(config, names, weights);
  check_saved(config, names, weights);
  return config;
}

}  // namespace megalith::peft
