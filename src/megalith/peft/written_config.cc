// Every weight of the model is sorted into one of three kinds, and those of a kind are named as shortly as possible: by
// the end of their name where all weights with this end have the same update, in full otherwise.
#include "megalith/peft/written_config.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "megalith/base/text.h"
#include "megalith/peft/targets.h"

namespace megalith::peft {

namespace {

// "model.layers.3.mlp.up_proj" -> "mlp.up_proj"; a name without a layer stays.
std::string without_layer(const std::string& name) {
  const std::vector<std::string> words = split(name, '.');
  for (size_t i = 0; i + 1 < words.size(); ++i)
    if (parse_int(words[i]))
      return fmt::format("{}", fmt::join(words.begin() + static_cast<long>(i) + 1, words.end(), "."));
  return name;
}

// The rank and alpha that peft is to use; std::nullopt = no update.
struct FileUpdate {
  int64_t rank = 0;
  double alpha = 0;
  bool operator==(const FileUpdate&) const = default;
};

// Names with their updates, and the ends that stand for them.
class NameGroup {
 public:
  void add(const std::string& end, const std::string& name, const std::optional<FileUpdate>& update) {
    by_end_[end][name] = update;
  }
  bool any() const {
    return std::ranges::any_of(by_end_, [](const auto& group) {
      return std::ranges::any_of(group.second, [](const auto& each) { return each.second.has_value(); });
    });
  }
  // Appends the names of those with an update to `to`, and their ranks and alphas where they differ from the defaults.
  void write(AdapterConfig& config, std::vector<std::string>& to) const {
    for (const auto& [end, group] : by_end_) {
      const auto& first = group.begin()->second;
      const bool equal = std::ranges::all_of(group, [&](const auto& each) { return each.second == first; });
      if (equal && first) write(end, *first, config, to);
      if (equal) continue;
      for (const auto& [name, update] : group)
        if (update) write(name, *update, config, to);
    }
  }

 private:
  static void write(const std::string& name, const FileUpdate& update, AdapterConfig& config,
                    std::vector<std::string>& to) {
    to.push_back(name);
    if (update.rank != config.rank) config.rank_pattern.emplace_back(NamePattern::end(name), update.rank);
    if (update.alpha != config.alpha) config.alpha_pattern.emplace_back(NamePattern::end(name), update.alpha);
  }
  std::map<std::string, std::map<std::string, std::optional<FileUpdate>>> by_end_;
};

// alpha of W + s·B·A for a scale and a rank; without the noise of a division and a product.
double alpha_of(double scale, int64_t rank, bool rslora) {
  const auto r = static_cast<double>(rank);
  const double alpha = scale * (rslora ? std::sqrt(r) : r), whole = std::round(alpha);
  return std::abs(alpha - whole) < 1e-9 * whole ? whole : alpha;
}

// The weights of a model by the way in which peft can be told about them.
struct Kinds {
  NameGroup modules, tensors, experts;
  bool has_experts = false, half_of_gate_up = false, up_without_down = false;
};

Kinds kinds_of(const AdapterConfig& config, const hf::NameMap& names, const std::vector<Weight>& weights) {
  Kinds kinds;
  std::set<std::string> moved;  // words that peft takes for names of experts
  std::map<std::string, std::set<bool>> halves;
  std::set<std::string> up, down;            // layers whose experts have such updates
  std::map<std::string, std::string> files;  // ours -> theirs
  for (const Weight& weight : weights) {
    const auto theirs = hf::their_name(names, weight.name);
    if (weight.use == nn::WeightUse::kOther || !theirs) continue;
    files[weight.name] = *theirs;
    if (const auto expert = expert_tensor(names, *theirs)) moved.insert(expert->projection);
  }
  kinds.has_experts = !moved.empty();
  for (const Weight& weight : weights) {
    const auto file = files.find(weight.name);
    if (file == files.end()) continue;
    const auto update = update_of_file(names, file->second, config);
    const auto expert = expert_tensor(names, file->second);
    std::optional<FileUpdate> written;
    if (update) {
      const int64_t rank = update->rank * (expert && expert->gate_or_up ? 2 : 1);
      written = FileUpdate{rank, alpha_of(update->scale, rank, config.use_rslora)};
    }
    const std::string tensor = transformers_name(file->second), module = tensor.substr(0, tensor.rfind('.'));
    if (expert) {
      if (expert->gate_or_up) halves[expert->parameter].insert(update.has_value());
      if (update) (expert->gate_or_up ? up : down).insert(expert->parameter.substr(0, expert->parameter.rfind('.')));
      kinds.experts.add(without_layer(expert->parameter), expert->parameter, written);
    } else if (weight.use == nn::WeightUse::kRouter || moved.contains(module_end(module))) {
      kinds.tensors.add(without_layer(tensor), tensor, written);
    } else {
      kinds.modules.add(module_end(module), module, written);
    }
  }
  kinds.up_without_down = !std::ranges::includes(down, up);
  kinds.half_of_gate_up = std::ranges::any_of(halves, [](const auto& each) { return each.second.size() > 1; });
  return kinds;
}

// Whether the file of the configuration says more than which modules are targets.
bool has_choices(const AdapterConfig& config) {
  return config.target_pattern || !config.target_parameters.empty() || !config.exclude_modules.empty() ||
         config.exclude_pattern || !config.layers_to_transform.empty() || !config.rank_pattern.empty() ||
         !config.alpha_pattern.empty();
}

bool saves_experts(const AdapterConfig& config, const hf::NameMap& names, const std::vector<Weight>& weights) {
  return std::ranges::any_of(weights, [&](const Weight& weight) {
    const auto theirs = hf::their_name(names, weight.name);
    return theirs && expert_tensor(names, *theirs) && is_saved(module_of(names, weight.name), config);
  });
}

}  // namespace

WrittenConfig written_config(const AdapterConfig& config, const hf::NameMap& names,
                             const std::vector<Weight>& weights) {
  const Kinds kinds = kinds_of(config, names, weights);
  WrittenConfig written{config, {}};
  const bool experts = kinds.experts.any(), tensors = kinds.tensors.any();
  if (saves_experts(config, names, weights))
    written.problems.emplace_back("it keeps the experts of a layer in two tensors, and some are trained in full here");
  if (!kinds.has_experts || (!experts && !tensors)) return written;
  if (kinds.half_of_gate_up)
    written.problems.emplace_back("it joins gate and up of experts, and only one of them has an update");
  if (kinds.up_without_down)
    written.problems.emplace_back("it expects updates of gate and up of experts together with those of down");
  if (config.dropout > 0) written.problems.emplace_back("it has no dropout for updates of experts and routers");
  // Names of experts alone are moved by peft correctly, but for the scale of rank-stabilized updates.
  if (!tensors && !config.use_rslora && !has_choices(config) && !config.stacked_experts) return written;
  AdapterConfig& file = written.config;
  file.target_modules.clear();
  file.target_pattern.reset();
  file.target_parameters.clear();
  file.exclude_modules.clear();
  file.exclude_pattern.reset();
  file.layers_to_transform.clear();
  file.layers_pattern.clear();
  file.rank_pattern.clear();
  file.alpha_pattern.clear();
  kinds.modules.write(file, file.target_modules);
  kinds.experts.write(file, file.target_parameters);
  kinds.tensors.write(file, file.target_parameters);
  return written;
}

}  // namespace megalith::peft
