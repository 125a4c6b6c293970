// Adapters that peft has written (tests/data/peft/make.py): patterns, regular expressions, embeddings, experts in the
// form of transformers 5. Logits, merged weights and files written again, in several layouts.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/hf/safetensors_file.h"
#include "megalith/model/adapter.h"
#include "megalith/model/convert/convert.h"
#include "megalith/model/families/family.h"
#include "megalith/peft/adapter_files.h"
#include "megalith/peft/written_config.h"
#include "tests/model/layout_case.h"
#include "tests/model/model_support.h"
#include "tests/model/random_adapter.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> peft_folders() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator("tests/data/peft"))
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

class PeftFiles : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    folder_ = fs::path("tests/data/peft") / GetParam();
    base_ = golden_folder(peft::read_adapter_config(folder_).base_model);
    expected_ = hf::SafetensorsFile(folder_ / "expected.safetensors").tensor("logits").clone();
  }
  std::vector<LayoutCase> layouts() const {
    const model::ModelConfig config = model::read_model_config(base_);
    std::vector<LayoutCase> all{{.tp = 1}, {.tp = 2, .sequence_parallel = true, .main_grad = true}};
    if (config.moe) all.push_back({.tp = 1, .dp = 2, .ep = 2, .etp = 1});
    if (config.moe) all.push_back({.tp = 2, .sequence_parallel = true, .dp = 2, .ep = 2, .etp = 2});
    return all;
  }
  void expect_logits(const at::Tensor& logits, const char* what) const {
    expect_close(logits.narrow(1, 0, expected_.size(1)), expected_, what, 1e-4);
  }
  fs::path folder_, base_;
  at::Tensor expected_;
  TempFolder temp_;
};

TEST_P(PeftFiles, InEveryLayout) {
  std::optional<NamedTensors> gradients;
  for (LayoutCase layout : layouts()) {
    SCOPED_TRACE(layout.name());
    layout.adapter = folder_;
    const RunResult run = run_layout(base_, small_batch(200), layout);
    expect_logits(run.logits, "logits");
    if (!gradients) gradients = run.gradients;
    for (const auto& [name, gradient] : *gradients) expect_close(run.gradients.at(name), gradient, name, 2e-4, 1e-6);
    layout.merged = true;
    const bool tied = model::read_model_config(base_).tied_embeddings;
    if (!tied || GetParam().find("embedding") == std::string::npos)
      if (GetParam() != "gpt2_conv") expect_logits(run_layout(base_, small_batch(200), layout).logits, "merged");
  }
}

// The adapter that we write has the same update, and is read in other layouts.
TEST_P(PeftFiles, WrittenAgain) {
  if (GetParam() == "llama_embedding") return;  // its embedding is not that of the base, and only updates are written
  run_ranks(2, [&](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 2, .tp = 2}));
    model::ModelSettings settings;
    settings.options.sequence_parallel = true;
    model::save_adapter(model::with_adapter(base_, settings, context, {.trained = folder_}), temp_ / "again");
  });
  EXPECT_FALSE(peft::read_adapter_config(temp_ / "again").stacked_experts);
  for (LayoutCase layout : layouts()) {
    SCOPED_TRACE(layout.name());
    layout.adapter = temp_ / "again";
    expect_logits(run_layout(base_, small_batch(200), layout).logits, "logits");
  }
}

TEST_P(PeftFiles, MergedIntoFiles) {
  const model::ModelConfig config = model::read_model_config(base_);
  if (config.tied_embeddings && (GetParam() == "qwen2_embedding" || GetParam() == "gpt2_conv")) {
    EXPECT_THROW(model::convert_checkpoint(base_, temp_ / "no", {.adapters = {folder_}}), ConfigError);
    return;
  }
  model::convert_checkpoint(base_, temp_ / "merged", {.adapters = {folder_}});
  expect_logits(run_layout(temp_ / "merged", small_batch(200), {}).logits, "logits");
}

INSTANTIATE_TEST_SUITE_P(, PeftFiles, ::testing::ValuesIn(peft_folders()), [](const auto& test) { return test.param; });

// ---- What is written ----

peft::WrittenConfig written(const std::string& model, const peft::AdapterConfig& adapter) {
  const TempFolder temp;
  write_random_adapter(golden_folder(model), temp / "a", adapter);
  const model::ModelConfig config = model::read_model_config(golden_folder(model));
  std::vector<peft::Weight> weights;
  for (const hf::GlobalTensor& tensor : model::global_tensors(config)) {
    if (!tensor.name.ends_with(".weight") || tensor.shape.size() != 2 || tensor.name.starts_with("mtp.")) continue;
    const bool router = tensor.name.ends_with("router.weight");
    weights.push_back({tensor.name, router ? nn::WeightUse::kRouter : nn::WeightUse::kColumn});
  }
  return peft::written_config(model::resolve_targets(adapter, config), model::name_map(config), weights);
}

TEST(WrittenAdapter, NamesExpertsAndOthersApart) {
  peft::AdapterConfig adapter;
  adapter.target_modules = {"all"};
  const auto [config, problems] = written("glm4_moe", adapter);
  using Names = std::vector<std::string>;
  EXPECT_EQ(config.target_modules, (Names{"k_proj", "o_proj", "q_proj", "v_proj"}));
  EXPECT_EQ(config.target_parameters,
            (Names{"mlp.experts.down_proj", "mlp.experts.gate_up_proj", "mlp.down_proj.weight", "mlp.gate_proj.weight",
                   "mlp.shared_experts.down_proj.weight", "mlp.shared_experts.gate_proj.weight",
                   "mlp.shared_experts.up_proj.weight", "mlp.up_proj.weight"}));
  ASSERT_EQ(config.rank_pattern.size(), 1U);
  EXPECT_EQ(config.rank_pattern[0].second, 2 * adapter.rank);
  EXPECT_EQ(config.alpha_pattern[0].second, 2 * adapter.alpha);
  EXPECT_TRUE(problems.empty());
  // Nothing collides: the words are kept.
  EXPECT_EQ(written("mixtral", adapter).config.target_modules,
            (Names{"k_proj", "o_proj", "q_proj", "v_proj", "w1", "w2", "w3"}));
}

TEST(WrittenAdapter, SaysWhatPeftCannotLoad) {
  peft::AdapterConfig adapter;
  adapter.target_modules = {"up_proj"};
  adapter.dropout = 0.1;
  const auto problems = written("qwen2_moe", adapter).problems;
  ASSERT_EQ(problems.size(), 3U);
  expect_contains(problems[0], "only one of them has an update");
  expect_contains(problems[1], "together with those of down");
  expect_contains(problems[2], "no dropout");
}

}  // namespace
}  // namespace megalith::testing
