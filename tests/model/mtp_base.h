// Models with multi-token-prediction layers in their files, which the golden ones lack.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "megalith/model/auto_model.h"
#include "megalith/model/pretrained.h"
#include "tests/model/model_support.h"

namespace megalith::testing {

// Writes a model of random weights with the configuration of a golden one and `layers` multi-token-prediction layers;
// `key` is their number's in config.json.
inline void write_mtp_model(const std::string& golden, const char* key, int64_t layers,
                            const std::filesystem::path& to) {
  const std::filesystem::path described = to.string() + "-described";
  std::filesystem::create_directories(described);
  nlohmann::json config;
  std::ifstream(golden_folder(golden) / "config.json") >> config;
  config[key] = layers;
  std::ofstream(described / "config.json") << config.dump();
  run_ranks(1, [&](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 1}));
    const auto models = model::AutoModel::from_config(model::read_model_config(described), {.seed = 7}, context);
    model::save_pretrained(models, to, {.dtype = at::kFloat});
  });
}

}  // namespace megalith::testing
