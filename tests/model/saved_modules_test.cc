// Modules that an adapter trains in full: routers, norms of one layer or of queries and keys, biases, the projector of
// a model that sees. In every layout, merged, written again, and in files as peft writes them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <optional>

#include "megalith/hf/safetensors_file.h"
#include "megalith/hf/weight_files.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/model/adapter.h"
#include "megalith/model/convert/convert.h"
#include "megalith/model/families/family.h"
#include "tests/model/layout_case.h"
#include "tests/model/model_support.h"
#include "tests/model/random_adapter.h"
#include "tests/support/close.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

struct Saved {
  const char *test, *model;
  std::vector<std::string> modules;
  bool biases = false;
  std::vector<std::string> whole;  // ends of names of tensors in the file, without which something is missing
};
void PrintTo(const Saved& saved, std::ostream* out) { *out << saved.test; }

class SavedModules : public ::testing::TestWithParam<Saved> {
 protected:
  void SetUp() override {
    base_ = golden_folder(GetParam().model);
    config_ = model::read_model_config(base_);
    peft::AdapterConfig adapter;
    adapter.target_modules = {config_.family == "gpt2" ? "c_attn" : "v_proj"};
    if (config_.family == "deepseek_v3") adapter.target_modules = {"o_proj"};
    adapter.modules_to_save = GetParam().modules;
    if (GetParam().biases) adapter.biases = peft::TrainedBiases::kAll;
    adapter.rank = 2;
    write_random_adapter(base_, temp_ / "adapter", adapter);
  }
  std::vector<LayoutCase> layouts() const {
    std::vector<LayoutCase> all{{.tp = 1}, {.tp = 2, .sequence_parallel = true, .main_grad = true}};
    if (config_.moe) all.push_back({.tp = 1, .dp = 2, .ep = 2, .etp = 1});
    return all;
  }
  TempFolder temp_;
  fs::path base_;
  model::ModelConfig config_;
};

TEST_P(SavedModules, InEveryLayout) {
  const hf::SafetensorsFile file(temp_ / "adapter" / "adapter_model.safetensors");
  const hf::WeightFiles base(base_);
  for (const std::string& end : GetParam().whole)
    EXPECT_TRUE(std::ranges::any_of(file.tensors(), [&](const hf::TensorInfo& info) {
      return info.name.ends_with(end) && info.name.find("lora_") == std::string::npos;
    })) << end;
  const TokenBatch batch = small_batch(std::min<int64_t>(200, config_.vocab_size));
  const at::Tensor without = run_layout(base_, batch, {}).logits;
  std::optional<RunResult> first;
  for (LayoutCase layout : layouts()) {
    SCOPED_TRACE(layout.name());
    layout.adapter = temp_ / "adapter";
    RunResult run = run_layout(base_, batch, layout);
    if (!first) {
      EXPECT_GT((run.logits - without).abs().max().item<double>(), 1e-3);
      EXPECT_EQ(std::ssize(run.gradients), std::ranges::count_if(file.tensors(), [](const hf::TensorInfo& info) {
                  return !info.name.ends_with("e_score_correction_bias");
                }));
      first = std::move(run);
      continue;
    }
    expect_close(run.logits, first->logits, "logits", 2e-4);
    for (const auto& [name, gradient] : first->gradients)
      expect_close(run.gradients.at(name), gradient, name, 2e-4, 1e-6);
  }
  model::convert_checkpoint(base_, temp_ / "merged", {.adapters = {temp_ / "adapter"}});
  expect_close(run_layout(temp_ / "merged", batch, {}).logits, first->logits, "logits of the merged model", 2e-4);
}

// peft does not load a router without its buffers, so they are in the file; one without them is read with the base's.
TEST_P(SavedModules, HaveTheirBuffers) {
  const hf::SafetensorsFile file(temp_ / "adapter" / "adapter_model.safetensors");
  const hf::WeightFiles base(base_);
  std::vector<hf::WeightSpec> others;
  int64_t buffers = 0;
  for (const hf::TensorInfo& info : file.tensors()) {
    if (!info.name.ends_with("e_score_correction_bias")) {
      others.push_back({info.name, info.dtype, info.shape});
      continue;
    }
    ++buffers;
    expect_identical(file.tensor(info.name), base.tensor(info.name.substr(17)), info.name);
  }
  EXPECT_EQ(buffers, config_.family == "deepseek_v3" ? 3 : 0);
  if (buffers == 0) return;
  fs::create_directory(temp_ / "without");
  hf::WeightWriter writer(temp_ / "without", others, {.stem = peft::kWeightsStem});
  writer.create_files();
  for (const hf::WeightSpec& spec : others) writer.write(spec.name, file.tensor(spec.name));
  writer.sync();
  fs::copy_file(temp_ / "adapter" / peft::kConfigName, temp_ / "without" / peft::kConfigName);
  const TokenBatch batch = small_batch(200);
  LayoutCase with, without;
  with.adapter = temp_ / "adapter";
  without.adapter = temp_ / "without";
  expect_identical(run_layout(base_, batch, without).logits, run_layout(base_, batch, with).logits, "logits");
}

INSTANTIATE_TEST_SUITE_P(
    , SavedModules,
    ::testing::Values(
        Saved{"routers", "qwen3_moe", {"mlp.gate"}, false, {"layers.1.mlp.gate.weight"}},
        Saved{"routers_with_buffers", "deepseek_v3", {"mlp.gate"}, false, {"layers.2.mlp.gate.weight"}},
        Saved{"routers_of_mixtral", "mixtral", {"gate"}, false, {"gate.weight"}},
        Saved{
            "gates_of_shared_experts", "qwen2_moe", {"gate"}, false, {"mlp.gate.weight", "shared_expert_gate.weight"}},
        Saved{"norm_of_one_layer", "llama", {"2.input_layernorm"}, false, {"layers.2.input_layernorm.weight"}},
        Saved{"norms_of_heads", "qwen3", {"q_norm", "k_norm"}, false, {"layers.3.self_attn.k_norm.weight"}},
        Saved{"biases", "gpt2", {}, true, {"ln_f.bias", "c_attn.base_layer.bias"}},
        Saved{"norm_with_bias", "gpt2", {"ln_f"}, false, {"ln_f.bias", "ln_f.weight"}},
        Saved{"a_block", "qwen2", {"1.self_attn"}, false, {"layers.1.self_attn.k_proj.bias"}}),
    [](const auto& test) { return std::string(test.param.test); });

// Text does not reach the projector, so its tensors are compared.
TEST(SavedProjector, HasTheNamesOfModules) {
  for (const char* name : {"qwen2_vl", "qwen3_vl"}) {
    SCOPED_TRACE(name);
    const TempFolder temp;
    peft::AdapterConfig adapter;
    adapter.target_modules = {"v_proj"};
    adapter.modules_to_save = {"visual.merger"};
    write_random_adapter(golden_folder(name), temp / "adapter", adapter);
    const hf::SafetensorsFile file(temp / "adapter" / "adapter_model.safetensors");
    int64_t saved = 0;
    for (const hf::TensorInfo& info : file.tensors()) {
      if (info.name.find("lora_") != std::string::npos) continue;
      EXPECT_TRUE(info.name.starts_with("base_model.model.model.visual.merger.")) << info.name;
      ++saved;
    }
    EXPECT_EQ(saved, 6);
    run_ranks(2, [&](const Rank& r) {
      parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 2, .tp = 2}));
      model::save_adapter(model::with_adapter(golden_folder(name), {}, context, {.trained = temp / "adapter"}),
                          temp / "again");
    });
    const hf::SafetensorsFile again(temp / "again" / "adapter_model.safetensors");
    for (const hf::TensorInfo& info : file.tensors())
      expect_identical(again.tensor(info.name), file.tensor(info.name), info.name);
  }
}

}  // namespace
}  // namespace megalith::testing
