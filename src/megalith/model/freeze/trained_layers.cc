// Names come from the family's table, so that they are those of its files; mixtral's blocks of experts have the name
// that transformers 5 gives them.
#include "megalith/model/freeze/trained_layers.h"

#include <algorithm>
#include <optional>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/model/families/family.h"
#include "megalith/model/families/model_config.h"
#include "megalith/peft/names.h"
#include "megalith/peft/targets.h"

namespace megalith::model {

namespace {

constexpr std::string_view kLayerScope = "layers.";

// "layers.30.attention.q.weight" -> {30, "attention.q.weight"}; std::nullopt for a tensor outside of layers.
struct InLayer {
  int64_t layer;
  std::string_view rest;
};
std::optional<InLayer> in_layer(std::string_view ours) {
  if (!ours.starts_with(kLayerScope)) return std::nullopt;
  const size_t dot = ours.find('.', kLayerScope.size());
  if (dot == std::string_view::npos) return std::nullopt;
  const auto layer = parse_int(std::string(ours.substr(kLayerScope.size(), dot - kLayerScope.size())));
  return layer ? std::optional(InLayer{*layer, ours.substr(dot + 1)}) : std::nullopt;
}

std::string first_word(std::string_view name) { return std::string(name.substr(0, name.find('.'))); }

// "model.layers.30.self_attn.q_proj.weight" -> "self_attn", the word after the number of the layer.
std::string module_in_layer(const std::string& theirs) {
  const std::vector<std::string> words = split(peft::transformers_name(theirs), '.');
  for (size_t i = 0; i + 1 < words.size(); ++i)
    if (parse_int(words[i]) || words[i] == "{}") return words[i + 1];
  return "";
}

std::set<int64_t> chosen_layers(const LayerChoice& choice, int64_t all) {
  std::set<int64_t> layers;
  if (choice.spread) {
    check<ConfigError>(choice.layers > 0 && all % choice.layers == 0,
                       "use_llama_pro trains every n-th layer, but the {} layers of the model are not a multiple of"
                       " freeze_trainable_layers {}; use a number that divides them",
                       all, choice.layers);
    const int64_t stride = all / choice.layers;
    for (int64_t layer = stride - 1; layer < all; layer += stride) layers.insert(layer);
    return layers;
  }
  const int64_t count = std::min(std::abs(choice.layers), all);
  const int64_t first = choice.layers > 0 ? all - count : 0;
  for (int64_t layer = first; layer < first + count; ++layer) layers.insert(layer);
  return layers;
}

bool lists_all(const std::vector<std::string>& modules) { return std::ranges::find(modules, "all") != modules.end(); }

// Checks that each of the names is known.
void check_names(const char* option, const std::vector<std::string>& names, const std::set<std::string>& known,
                 const char* where) {
  const std::vector<std::string> list(known.begin(), known.end());
  for (const std::string& name : names)
    check<ConfigError>(known.contains(name), "{}: the model has no module {} {}; known are {}", option, name, where,
                       list_in_words(list, 40));
}

}  // namespace

TrainedLayers::TrainedLayers(LayerChoice choice, const ModelConfig& config)
    : choice_(std::move(choice)), names_(module_names(config)), layers_(chosen_layers(choice_, config.num_layers)) {}

bool TrainedLayers::names(const std::string& module) const {
  return lists_all(choice_.modules) || std::ranges::find(choice_.modules, module) != choice_.modules.end();
}

bool TrainedLayers::trains(std::string_view ours) const {
  if (ours.starts_with("vision.") || ours.starts_with("audio.")) return true;
  if (ours.starts_with("mtp.")) return false;
  const auto theirs = hf::their_name(names_, ours);
  if (const auto place = in_layer(ours))
    return layers_.contains(place->layer) && theirs && names(module_in_layer(*theirs));
  const std::string module = peft::module_of(names_, ours);
  return !module.empty() && std::ranges::find(choice_.extra, peft::module_end(module)) != choice_.extra.end();
}

bool TrainedLayers::trains_part(int64_t layer, std::string_view part) const {
  if (!layers_.contains(layer)) return false;
  return std::ranges::any_of(names_.rules, [&](const hf::NameRule& rule) {
    return std::ranges::any_of(rule.ours, [&](const std::string& ours) {
      constexpr std::string_view kAnyLayer = "layers.{}.";
      if (!ours.starts_with(kAnyLayer)) return false;
      return first_word(std::string_view(ours).substr(kAnyLayer.size())) == part && names(module_in_layer(rule.theirs));
    });
  });
}

void check_layer_choice(const LayerChoice& choice, const ModelConfig& config,
                        const std::vector<hf::GlobalTensor>& tensors) {
  const TrainedLayers checked(choice, config);
  const hf::NameMap names = module_names(config);
  std::set<std::string> inside{"all"}, outside;
  for (const hf::GlobalTensor& tensor : tensors) {
    const auto theirs = hf::their_name(names, tensor.name);
    if (!theirs || tensor.name.starts_with("mtp.") || tensor.name.starts_with("vision.") ||
        tensor.name.starts_with("audio."))
      continue;
    if (in_layer(tensor.name))
      inside.insert(module_in_layer(*theirs));
    else
      outside.insert(peft::module_end(peft::module_of(names, tensor.name)));
  }
  check_names("freeze_trainable_modules", choice.modules, inside, "in its layers");
  check_names("freeze_extra_modules", choice.extra, outside, "outside of its layers");
}

}  // namespace megalith::model
