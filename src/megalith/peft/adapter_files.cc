// The form in which peft keeps the experts follows from its ParamWrapper: A is reshaped to [n, r, i], B to [o, r, n].
#include "megalith/peft/adapter_files.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/peft/targets.h"

namespace megalith::peft {

namespace {

constexpr std::string_view kPrefix = "base_model.model.", kExperts = ".experts.", kNested = "base_layer.";

// The rank of an expert's tensor; 0 if it has no update.
int64_t rank_of(const hf::NameMap& names, const std::string& tensor, const AdapterConfig& config) {
  const auto update = update_of_file(names, tensor, config);
  return update ? update->rank : 0;
}

// "model.layers.{}.mlp.experts.{}.up_proj.weight" -> up_proj, for the rule whose name of ours ends so.
std::string projection(const hf::NameMap& names, std::string_view ours) {
  const auto rule = std::ranges::find_if(names.rules, [&](const hf::NameRule& each) {
    return each.ours[0].ends_with(ours) && !each.ours[0].starts_with("mtp.");
  });
  if (rule == names.rules.end()) return "";
  const std::vector<std::string> words = split(rule->theirs, '.');
  return words[words.size() - 2];
}

// Presents the factors of all experts of a layer as those of each.
class StackedExperts {
 public:
  StackedExperts(const hf::WeightFiles& files, const AdapterConfig& config, const hf::NameMap& names,
                 std::vector<hf::WeightFiles::View>& views)
      : files_(files),
        views_(views),
        config_(config),
        names_(names),
        gate_(projection(names, ".experts.{}.gate.weight")),
        up_(projection(names, ".experts.{}.up.weight")),
        down_(projection(names, ".experts.{}.down.weight")) {}

  // `tensor` is "base_model.model.<block>.experts.[base_layer.]lora_A.weight", or lora_B.
  void present(const std::string& tensor, const std::string& block) {
    const size_t end = tensor.find(kExperts) + kExperts.size();
    std::string_view rest = std::string_view(tensor).substr(end);
    const bool nested = rest.starts_with(kNested);
    if (nested) rest.remove_prefix(kNested.size());
    if (rest != "lora_A.weight" && rest != "lora_B.weight") return;
    const auto rank_in = [&](const std::string& word) {
      return word.empty() ? 0 : rank_of(names_, fmt::format("{}0.{}.weight", block, word), config_);
    };
    // Where both are targets, down_proj is outside.
    const int64_t up = rank_in(up_), down = rank_in(down_);
    const bool is_up = nested || down == 0;
    const int64_t rank = is_up ? up : down;
    if (rank == 0) return;
    const std::vector<std::string> words = !is_up          ? std::vector<std::string>{down_}
                                           : gate_.empty() ? std::vector<std::string>{up_}
                                                           : std::vector<std::string>{gate_, up_};
    for (size_t part = 0; part < words.size(); ++part)
      present_part({tensor, block, words[part], rest, rank}, part, words.size());
  }

 private:
  struct Part {
    const std::string& tensor;
    const std::string& block;
    const std::string& word;
    std::string_view factor;
    int64_t rank;
  };
  void present_part(const Part& part, size_t number, size_t parts) {
    const bool is_a = part.factor == "lora_A.weight";
    const std::vector<int64_t> shape = files_.find(part.tensor)->shape;
    const int64_t stacked = shape.size() == 2 ? shape[is_a ? 0 : 1] : 0, rank = part.rank, experts = stacked / rank;
    if (experts == 0 || stacked % rank != 0 || (!is_a && shape[0] % static_cast<int64_t>(parts) != 0)) return;
    const int64_t out = shape[0] / static_cast<int64_t>(parts), first = static_cast<int64_t>(number) * out;
    for (int64_t expert = 0; expert < experts; ++expert) {
      const std::string name = fmt::format("{}{}{}.{}.{}", kPrefix, part.block, expert, part.word, part.factor);
      views_.push_back({name, part.tensor, [=](const at::Tensor& whole) {
                          return is_a ? whole.narrow(0, expert * rank, rank)
                                      : whole.view({-1, rank, experts}).select(2, expert).narrow(0, first, out);
                        }});
    }
  }

  const hf::WeightFiles& files_;
  std::vector<hf::WeightFiles::View>& views_;
  const AdapterConfig& config_;
  const hf::NameMap& names_;
  const std::string gate_, up_, down_;  // their words in the files
};

at::Tensor same(const at::Tensor& tensor) { return tensor; }

}  // namespace

std::unique_ptr<hf::WeightFiles> open_adapter(const std::filesystem::path& folder, const AdapterConfig& config,
                                              const hf::NameMap& names) {
  auto files = std::make_unique<hf::WeightFiles>(folder, fmt::format("{}.safetensors", kWeightsStem));
  std::vector<hf::WeightFiles::View> views;
  StackedExperts experts(*files, config, names, views);
  constexpr std::string_view kBase = ".base_layer.weight", kBaseBias = ".base_layer.bias";
  for (const std::string& tensor : files->names()) {
    if (!tensor.starts_with(kPrefix)) continue;
    const std::string theirs = tensor.substr(kPrefix.size()), name = newer_name(file_name(theirs, names), names);
    const size_t block = name.find(kExperts);
    if (config.stacked_experts && block != std::string::npos)
      experts.present(tensor, name.substr(0, block + kExperts.size()));
    else if (tensor.ends_with(kBase))
      views.push_back({name.substr(0, name.size() - kBase.size()) + ".weight", tensor, same, /*listed=*/false});
    else if (tensor.ends_with(kBaseBias))
      views.push_back(
          {fmt::format("{}{}.bias", kPrefix, name.substr(0, name.size() - kBaseBias.size())), tensor, same});
    else if (tensor.ends_with(".modules_to_save.bias") || tensor.ends_with(".original_module.bias"))
      views.push_back({name, tensor, same, /*listed=*/false});
    else if (name != theirs)
      views.push_back({std::string(kPrefix) + name, tensor, same});
  }
  files->add_views(views);
  return files;
}

std::unique_ptr<hf::WeightFiles> open_start(const std::filesystem::path& folder, const AdapterConfig& config) {
  const std::string file = fmt::format("{}.safetensors", kStartStem);
  if (std::filesystem::is_regular_file(folder / file)) return std::make_unique<hf::WeightFiles>(folder, file);
  check<ConfigError>(config.pissa->iterations < 0,
                     "the adapter {} belongs to a base model whose principal parts were found with random numbers"
                     " (init_lora_weights pissa_niter_{}), and has no {} that holds them. Convert it where it was made:"
                     " pissa_convert, or peft's save_pretrained with path_initial_model_for_weight_conversion",
                     folder.string(), config.pissa->iterations, file);
  return nullptr;
}

}  // namespace megalith::peft
