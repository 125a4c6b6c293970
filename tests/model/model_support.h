// Shared by the tests of models: golden checkpoints on rank threads.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/layout/rng_seeds.h"
#include "megalith/model/families/family.h"
#include "megalith/model/pretrained.h"
#include "tests/support/golden.h"
#include "tests/support/golden_model.h"
#include "tests/support/run_ranks.h"

namespace megalith::testing {

// Returns whether a family of the library has this model_type.
inline bool model_type_supported(const std::string& type) {
  for (const model::Family& family : model::families())
    if (family.model_type == type) return true;
  return false;
}

// The golden folders whose model type is supported: those of text, and those with media.
inline std::vector<std::string> supported_among(std::vector<std::string> names) {
  std::erase_if(names, [](const std::string& name) { return !model_type_supported(golden_model_type(name)); });
  return names;
}
inline std::vector<std::string> supported_golden_models() { return supported_among(golden_model_names()); }
inline std::vector<std::string> supported_media_models() { return supported_among(golden_media_names()); }

// Returns the folder of a golden checkpoint.
inline std::filesystem::path golden_folder(const std::string& name) { return golden_dir() / "hf" / name; }

// Whether two tensor-parallel ranks can share the model.
inline bool splits_over_two(const std::filesystem::path& folder) {
  const auto worlds = comm::World::in_process(2);
  parallel::ParallelContext context(*worlds[0], layout::RankGrid({.world_size = 2, .tp = 2}));
  const model::ModelConfig config = model::read_model_config(folder);
  model::ModelOptions options;
  options.device = at::kMeta;
  options.sequence_parallel = true;
  try {
    const model::GptModel model(config, options, model::ChunkPlace::whole(config), context);
  } catch (const ConfigError&) {
    return false;
  }
  return true;
}

// 1, 2 and 4, as far as the heads can be shared.
inline std::vector<int> tp_sizes(const std::filesystem::path& folder) {
  std::vector<int> sizes{1, 2, 4};
  const model::ModelConfig config = model::read_model_config(folder);
  std::erase_if(sizes, [&](int tp) {
    return config.num_heads % tp != 0 || (config.delta_net && config.delta_net->key_heads % tp != 0);
  });
  return sizes;
}

// A layout and the options of a model on it.
struct ModelCase {
  int tp = 1;
  int dp = 1;
  int cp = 1;
  model::ModelOptions options;
  std::function<void(model::ModelConfig&)> change;  // changes the configuration before the model is made
};

// Loads the checkpoint in `folder` on tp * dp * cp rank threads and runs `body` on each.
inline void run_model(const std::filesystem::path& folder, const ModelCase& how,
                      const std::function<void(const Rank&, model::VirtualModels&)>& body) {
  const model::ModelConfig in_files = model::read_model_config(folder);
  model::ModelConfig config = in_files;
  if (how.change) how.change(config);
  run_ranks(how.tp * how.dp * how.cp, [&](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = r.size, .tp = how.tp, .cp = how.cp}));
    context.rng().seed(layout::seeds_for_base(1, context.place().tp_rank, 0, 0));
    model::VirtualModels models(config, how.options, {model::ChunkPlace::whole(config)}, context);
    model::load_weights(models, folder, in_files, 1);
    body(r, models);
  });
}

}  // namespace megalith::testing
