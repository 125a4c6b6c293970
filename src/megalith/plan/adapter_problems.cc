// Says which adapters the planner does not count, so that it refuses instead of planning too little memory.
#include "megalith/plan/adapter_problems.h"

#include <fmt/format.h>

#include <algorithm>

#include "megalith/model/adapter.h"
#include "megalith/model/families/family.h"
#include "megalith/model/footprint/model_footprint.h"
#include "megalith/model/pretrained.h"
#include "megalith/peft/names.h"
#include "megalith/peft/targets.h"
#include "megalith/plan/rank_sizes.h"

namespace megalith::plan {

namespace {

// Whether all that a module to save names is counted where it is trained as a whole.
bool counts_whole(const std::string& module, const model::ModelConfig& config, const hf::NameMap& names) {
  peft::AdapterConfig one;
  one.modules_to_save = {module};
  return std::ranges::all_of(model::global_tensors(config), [&](const hf::GlobalTensor& tensor) {
    if (tensor.buffer || !peft::is_saved(peft::module_of(names, tensor.name), one)) return true;
    if (model::has_vocabulary_rows(tensor.name, config)) return true;
    if (tensor.name.starts_with("vision.") || tensor.name.starts_with("audio.")) return false;
    return tensor.shape.size() == 1 || tensor.name.ends_with(".router.weight") ||
           tensor.name.ends_with(".shared_gate.weight");
  });
}

}  // namespace

std::vector<std::string> adapter_problems(const RunShape& run) {
  if (!run.options.adapter) return {};
  const model::ModelConfig& m = *run.model;
  std::vector<std::string> found;
  if (!model::ModelFootprint(m, run.options, rank_sizes(run)).counts_updates())
    found.push_back(fmt::format(
        "adapters of {} models are not planned: their latent or linear attention is not counted", m.family));
  const auto& adapter = *run.options.adapter;
  std::vector<std::string> vocabulary = model::vocabulary_modules(m);
  if (m.num_labels > 0) vocabulary.emplace_back("score");
  const hf::NameMap names = model::module_names(m);
  for (const std::string& module : adapter.modules_to_save)
    if (std::ranges::find(vocabulary, module) == vocabulary.end() && !counts_whole(module, m, names))
      found.push_back(
          fmt::format("additional_target {} is not planned: of modules that are trained in full, {}, norms,"
                      " routers and gates of shared experts are",
                      module, fmt::join(vocabulary, " and ")));
  for (const char* ours :
       {"embedding.weight", "head.weight", "layers.0.mlp.router.weight", "layers.0.mlp.shared_gate.weight"})
    if (const auto update = peft::update_of(names, ours, adapter))
      found.push_back(fmt::format("lora_target {} is not planned; plan the run without it", update->module));
  return found;
}

}  // namespace megalith::plan
