// Adapters that Megalith has written, in peft itself: its logits equal ours, so no part of an adapter is dropped.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/hf/safetensors_file.h"
#include "megalith/model/adapter.h"
#include "megalith/model/auto_model.h"
#include "megalith/model/families/family.h"
#include "tests/model/layout_case.h"
#include "tests/model/model_support.h"
#include "tests/model/random_adapter.h"
#include "tests/support/close.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

class InPeft : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* python = std::getenv("MEGALITH_PYTHON");
    if (!python || *python == 0) GTEST_SKIP() << "MEGALITH_PYTHON does not name a Python with peft";
    if (run_process({python, "-c", "import peft, transformers"}, {}, std::chrono::minutes(3)).exit_code != 0)
      GTEST_SKIP() << "the Python of MEGALITH_PYTHON has no peft";
    python_ = python;
  }

  // Compares the logits of both programs for pairs of a model and an adapter; one start of Python serves all.
  void expect_same_logits(const std::vector<std::pair<fs::path, fs::path>>& pairs) {
    std::vector<std::string> command{python_, "tests/data/peft/logits.py"};
    for (const auto& [model, adapter] : pairs)
      for (const fs::path& path : {model, adapter, adapter / "logits.safetensors"}) command.push_back(path.string());
    const auto result = run_process(command, {}, std::chrono::minutes(4));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    for (const auto& [model, adapter] : pairs) {
      SCOPED_TRACE(adapter);
      LayoutCase layout;
      layout.adapter = adapter;
      const int64_t ids = std::min<int64_t>(200, model::read_model_config(model).vocab_size);
      const RunResult run = run_layout(model, small_batch(ids), layout);
      const hf::SafetensorsFile file(adapter / "logits.safetensors");
      expect_close(run.logits, file.tensor("logits").flatten(0, 1), "logits", 1e-4);
    }
  }

  std::string python_;
  TempFolder temp_;
};

// Targets: every linear layer, the embedding, the head, routers and gates of shared experts.
TEST_F(InPeft, EveryFamilyAndLayer) {
  std::vector<std::pair<fs::path, fs::path>> pairs;
  for (const std::string& name : supported_golden_models())
    for (const bool rslora : {false, true}) {
      const fs::path model = golden_folder(name), to = temp_ / (name + (rslora ? "-rslora" : ""));
      peft::AdapterConfig adapter = everything(model::read_model_config(model), /*embedding=*/true);
      adapter.use_rslora = rslora;
      write_random_adapter(model, to, adapter);
      pairs.emplace_back(model, to);
    }
  expect_same_logits(pairs);
}

// Adapters that started from principal parts: relative to what these left, which peft computes again from the base, and
// as ordinary adapters of twice the rank.
TEST_F(InPeft, PrincipalParts) {
  std::vector<std::pair<fs::path, fs::path>> pairs;
  for (const char* name : {"llama", "gpt2"}) {
    const fs::path trained = fs::path("tests/data/pissa") / name;
    for (const bool converts : {false, true}) {
      const fs::path to = temp_ / fmt::format("{}-{}", name, converts);
      run_ranks(2, [&](const Rank& r) {
        parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 2, .tp = 2}));
        model::save_adapter(model::with_adapter(golden_folder(name), {}, context, {.trained = trained}), to,
                            {.without_start = converts});
      });
      pairs.emplace_back(golden_folder(name), to);
    }
  }
  expect_same_logits(pairs);
}

TEST_F(InPeft, ModulesToSave) {
  struct Saved {
    const char* model;
    std::vector<std::string> modules;
    bool biases = false;
  };
  std::vector<std::pair<fs::path, fs::path>> pairs;
  for (const Saved& saved : {Saved{"qwen3_moe", {"mlp.gate"}},
                             {"deepseek_v3", {"mlp.gate"}},
                             {"mixtral", {"gate"}},
                             {"qwen2_moe", {"shared_expert_gate"}},
                             {"llama", {"2.input_layernorm"}},
                             {"qwen3", {"q_norm", "k_norm"}},
                             {"gpt2", {"ln_f"}},
                             {"gpt2", {}, true},
                             {"qwen2", {"1.self_attn"}},
                             {"qwen2_vl", {"visual.merger"}}}) {
    peft::AdapterConfig adapter;
    adapter.target_modules = {std::string_view(saved.model) == "gpt2" ? "c_fc" : "o_proj"};
    adapter.modules_to_save = saved.modules;
    adapter.rank = 2;
    if (saved.biases) adapter.biases = peft::TrainedBiases::kAll;
    const fs::path to = temp_ / fmt::format("{}-{}", saved.model, pairs.size());
    write_random_adapter(golden_folder(saved.model), to, adapter);
    pairs.emplace_back(golden_folder(saved.model), to);
  }
  expect_same_logits(pairs);
}

TEST_F(InPeft, Magnitudes) {
  std::vector<std::pair<fs::path, fs::path>> pairs;
  for (const char* name : {"llama", "qwen2", "gpt2", "seed_oss"}) {
    const fs::path model = golden_folder(name), to = temp_ / (std::string(name) + "-dora");
    peft::AdapterConfig adapter;
    adapter.target_modules = {"all"};
    adapter.use_dora = true;
    write_random_adapter(model, to, adapter);
    pairs.emplace_back(model, to);
  }
  expect_same_logits(pairs);
}

// Models that see, with towers that have updates as well: modules of transformers are named differently from files. As
// in a run, what has no update here is excluded, or peft would add updates of its own.
TEST_F(InPeft, ModelsThatSee) {
  std::vector<std::pair<fs::path, fs::path>> pairs;
  for (const char* name : {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"}) {
    const fs::path model = golden_folder(name), to = temp_ / name;
    const model::ModelConfig config = model::read_model_config(model);
    peft::AdapterConfig adapter = everything(config, /*embedding=*/true);
    adapter.exclude_pattern = peft::NamePattern::whole(model::excluded_modules(config, {}));
    write_random_adapter(model, to, adapter);
    pairs.emplace_back(model, to);
  }
  expect_same_logits(pairs);
}

// The default of lora_target on models that have experts beside dense layers or shared experts.
TEST_F(InPeft, AllOnExpertsAndDenseLayers) {
  const fs::path mixed = temp_ / "mixed";
  fs::create_directory(mixed);
  nlohmann::json config;
  std::ifstream(golden_folder("qwen3_moe") / "config.json") >> config;
  config["mlp_only_layers"] = {0};
  config["intermediate_size"] = 48;
  std::ofstream(temp_ / "mixed" / "config.json") << config.dump();
  run_ranks(1, [&](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 1}));
    const auto models = model::AutoModel::from_config(model::read_model_config(mixed), {}, context);
    model::save_pretrained(models, temp_ / "qwen3_moe_mixed", {});
  });
  std::vector<std::pair<fs::path, fs::path>> pairs;
  std::vector<fs::path> models{temp_ / "qwen3_moe_mixed"};
  for (const char* name : {"qwen2_moe", "glm4_moe", "deepseek_v3", "qwen3_next"}) models.push_back(golden_folder(name));
  for (const fs::path& model : models) {
    const fs::path to = temp_ / (model.filename().string() + "-all");
    peft::AdapterConfig adapter;
    adapter.target_modules = {"all"};
    write_random_adapter(model, to, adapter);
    pairs.emplace_back(model, to);
  }
  expect_same_logits(pairs);
}

// Files of peft's that Megalith has read and written again, with experts in its own form.
TEST_F(InPeft, WhatPeftWroteWrittenAgain) {
  std::vector<std::pair<fs::path, fs::path>> pairs;
  for (const auto& entry : fs::directory_iterator("tests/data/peft")) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename().string();
    const fs::path model = golden_folder(peft::read_adapter_config(entry.path()).base_model), to = temp_ / name;
    // The embedding of the first is not that of the base model, and only updates are written. The second has updates of
    // gate and up without down, which peft cannot load from ours; writing it warns (WrittenAdapter).
    if (name == "llama_embedding" || name == "deepseek_v3_up") continue;
    run_ranks(1, [&](const Rank& r) {
      parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 1}));
      model::save_adapter(model::with_adapter(model, {}, context, {.trained = entry.path()}), to);
    });
    pairs.emplace_back(model, to);
  }
  expect_same_logits(pairs);
}

}  // namespace
}  // namespace megalith::testing
