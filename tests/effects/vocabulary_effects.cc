// Options that add tokens to the tokenizer and rows to the model.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/config/derive.h"
#include "megalith/parallel/parallel_context.h"
#include "megalith/run/load_model.h"
#include "megalith/run/resolve/inputs.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/run/vocabulary/run_vocabulary.h"
#include "tests/effects/effect.h"
#include "tests/model/model_support.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

// The golden llama, which has 512 rows, with a tokenizer of 513 words.
std::string small_vocabulary() {
  static const TempFolder folder;
  if (!std::filesystem::exists(folder / "config.json")) {
    nlohmann::json vocab{{"a", 0}};
    for (int id = 1; id < 513; ++id) vocab["w" + std::to_string(id)] = id;
    std::ofstream(folder / "tokenizer.json")
        << nlohmann::json{{"pre_tokenizer", {{"type", "Whitespace"}}},
                          {"model", {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", "a"}}}};
    for (const char* name : {"config.json", "model.safetensors"})
      std::filesystem::copy_file(golden_folder("llama") / name, folder / name);
  }
  return folder.path().string();
}

// Returns the rows of the embedding that a run trains, and what a text becomes.
std::string rows_and_ids(const config::TrainingArguments& given) {
  const config::TrainingArguments args = config::derive(given).args;
  const run::ModelPlan plan = run::model_plan(*args.source.model_name_or_path, args);
  int64_t rows = 0;
  run_ranks(1, [&](const Rank& rank) {
    parallel::ParallelContext context(rank.world, layout::RankGrid({.world_size = 1}));
    const auto models =
        run::load_model(plan, run::with_vocabulary(run::model_settings(args, at::kCPU), plan.vocabulary), context);
    for (const nn::Parameter* parameter : models.parameters())
      if (parameter->spec.name == "embedding.weight") rows = parameter->spec.parts[0].global_shape[0];
  });
  const auto ids = plan.vocabulary.tokenizer->encode("a <x> w5");
  return fmt::format("{} rows; {}; {}", rows, fmt::join(ids, " "),
                     plan.vocabulary.tokenizer->decode(ids, {.skip_special_tokens = true}));
}

}  // namespace

Effects vocabulary_effects() {
  const Words small{"--finetuning_type=full", "--model_name_or_path=" + small_vocabulary()};
  return {{"resize_vocab", small, {}, {"--resize_vocab"}, rows_and_ids},
          {"add_tokens", small, {"--resize_vocab"}, {"--add_tokens=<x>"}, rows_and_ids},
          {"add_special_tokens", small, {"--add_tokens=<x>"}, {"--add_special_tokens=<x>"}, rows_and_ids}};
}

}  // namespace megalith::testing
