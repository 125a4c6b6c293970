// Golden models that see or hear, on rank threads in several layouts.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/model/model_support.h"

namespace megalith::testing {

// The golden models whose media are images and videos.
inline std::vector<std::string> seeing_models() {
  std::vector<std::string> names = supported_media_models();
  std::erase_if(names, [](const std::string& name) { return golden_model_type(name) == "qwen3_omni_moe"; });
  return names;
}

struct MediaLayout {
  int tp = 1, pp = 1, cp = 1, dp = 1;
  bool sequence_parallel = false;
  std::string name() const {
    return fmt::format("tp {} pp {} cp {} dp {}{}", tp, pp, cp, dp, sequence_parallel ? " sp" : "");
  }
};

using MediaBody = std::function<void(const Rank&, model::VirtualModels&)>;
inline void run_media_model(const std::string& name, const MediaLayout& how, const MediaBody& body,
                            bool towers = true) {
  const std::filesystem::path folder = golden_folder(name);
  const model::ModelConfig in_files = model::read_model_config(folder);
  const model::ModelConfig config = towers ? in_files : model::without_towers(in_files);
  run_ranks(how.tp * how.pp * how.cp * how.dp, [&](const Rank& r) {
    parallel::ParallelContext context(
        r.world, layout::RankGrid({.world_size = r.size, .tp = how.tp, .pp = how.pp, .cp = how.cp}));
    context.rng().seed(layout::seeds_for_base(1, context.place().tp_rank, 0, 0));
    model::ModelOptions options;
    options.sequence_parallel = how.sequence_parallel;
    model::VirtualModels models(config, options, model::chunk_places({}, config, context), context);
    model::load_weights(models, folder, in_files, 1);
    body(r, models);
  });
}

// Layouts that the model can have: deepstack rows must reach their layers on the first stage.
inline std::vector<MediaLayout> media_layouts_of(const std::string& name) {
  const model::ModelConfig config = model::read_model_config(golden_folder(name));
  std::vector<MediaLayout> layouts{{},
                                   {.tp = 2},
                                   {.tp = 2, .sequence_parallel = true},
                                   {.pp = 2},
                                   {.cp = 2},
                                   {.dp = 2},
                                   {.tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true},
                                   {.tp = 2, .cp = 2, .sequence_parallel = true}};
  const auto levels = static_cast<int64_t>(config.vision->deepstack_blocks.size());
  std::erase_if(layouts, [&](const MediaLayout& layout) {
    if (layout.pp > 1 && (config.num_layers % layout.pp != 0 || config.num_layers / layout.pp < levels)) return true;
    if (config.moe && layout.tp > 1 && !layout.sequence_parallel) return true;
    return config.num_heads % layout.tp != 0 ||
           (config.delta_net && config.delta_net->key_heads % (layout.tp * layout.cp) != 0);
  });
  return layouts;
}

}  // namespace megalith::testing
