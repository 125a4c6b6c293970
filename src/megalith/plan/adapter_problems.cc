// Says which adapters the planner does not count, so that it refuses instead of planning too little memory.
#include "megalith/plan/adapter_problems.h"

#include <fmt/format.h>

#include <algorithm>

#include "megalith/model/adapter.h"
#include "megalith/model/families/family.h"
#include "megalith/model/footprint/model_footprint.h"
#include "megalith/peft/targets.h"
#include "megalith/plan/rank_sizes.h"

namespace megalith::plan {

std::vector<std::string> adapter_problems(const RunShape& run) {
  if (!run.options.adapter) return {};
  const model::ModelConfig& m = *run.model;
  std::vector<std::string> found;
  if (!model::ModelFootprint(m, run.options, rank_sizes(run)).counts_updates())
    found.push_back(
        fmt::format("adapters of {} models are not planned: their latent or linear attention, or"
                    " multi-token prediction, is not counted",
                    m.family));
  const auto& adapter = *run.options.adapter;
  const std::vector<std::string> vocabulary = model::vocabulary_modules(m);
  for (const std::string& module : adapter.modules_to_save)
    if (std::ranges::find(vocabulary, module) == vocabulary.end())
      found.push_back(fmt::format("additional_target {} is not planned: of modules that are trained in full, {} are",
                                  module, fmt::join(vocabulary, " and ")));
  const hf::NameMap names = model::module_names(m);
  for (const char* ours :
       {"embedding.weight", "head.weight", "layers.0.mlp.router.weight", "layers.0.mlp.shared_gate.weight"})
    if (const auto update = peft::update_of(names, ours, adapter))
      found.push_back(fmt::format("lora_target {} is not planned; plan the run without it", update->module));
  return found;
}

}  // namespace megalith::plan
