// The weights that a choice of layers trains (finetuning_type freeze), and their gradients in every layout.
#include "megalith/model/freeze/trained_layers.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "megalith/base/error.h"
#include "megalith/model/adapter.h"
#include "megalith/model/families/family.h"
#include "tests/model/layout_case.h"
#include "tests/model/model_support.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"

namespace megalith::testing {
namespace {

using model::LayerChoice;
using Names = std::set<std::string>;

// The trained tensors of a golden model, by their names in its files.
Names trained_in(const std::string& name, const LayerChoice& choice) {
  const model::ModelConfig config = model::read_model_config(golden_folder(name));
  const model::TrainedLayers trained(choice, config);
  Names found;
  for (const hf::GlobalTensor& tensor : model::global_tensors(config))
    if (trained.trains(tensor.name)) found.insert(hf::their_name(model::module_names(config), tensor.name).value());
  return found;
}

// Whether all of the names, and only these, begin with one of the prefixes.
void expect_prefixes(const Names& names, const std::vector<std::string>& prefixes) {
  for (const std::string& name : names)
    EXPECT_TRUE(std::ranges::any_of(prefixes, [&](const std::string& prefix) { return name.starts_with(prefix); }))
        << name << " is trained";
  for (const std::string& prefix : prefixes)
    EXPECT_TRUE(std::ranges::any_of(names, [&](const std::string& name) { return name.starts_with(prefix); }))
        << prefix << " is not trained";
}

TEST(TrainedLayers, AreTheLastTheFirstOrSpread) {
  ASSERT_EQ(model::read_model_config(golden_folder("llama")).num_layers, 4);
  expect_prefixes(trained_in("llama", {}), {"model.layers.2.", "model.layers.3."});
  expect_prefixes(trained_in("llama", {.layers = -1}), {"model.layers.0."});
  expect_prefixes(trained_in("llama", {.layers = 9}),
                  {"model.layers.0.", "model.layers.1.", "model.layers.2.", "model.layers.3."});
  expect_prefixes(trained_in("llama", {.layers = 2, .spread = true}), {"model.layers.1.", "model.layers.3."});
  expect_prefixes(trained_in("llama", {.layers = 1, .spread = true}), {"model.layers.3."});
}

TEST(TrainedLayers, AreNarrowedByModulesAndWidenedByOthers) {
  EXPECT_EQ(trained_in("llama", {.layers = 1, .modules = {"input_layernorm"}, .extra = {"norm", "lm_head"}}),
            (Names{"lm_head.weight", "model.layers.3.input_layernorm.weight", "model.norm.weight"}));
  EXPECT_EQ(trained_in("llama", {.layers = 0, .extra = {"embed_tokens"}}), (Names{"model.embed_tokens.weight"}));
  expect_prefixes(
      trained_in("qwen3_moe", {.layers = 1, .modules = {"mlp"}}),
      {fmt::format("model.layers.{}.mlp.", model::read_model_config(golden_folder("qwen3_moe")).num_layers - 1)});
  // The block has another name in mixtral's files than in transformers.
  expect_prefixes(trained_in("mixtral", {.layers = -1, .modules = {"mlp"}}), {"model.layers.0.block_sparse_moe."});
}

TEST(TrainedLayers, UnknownNamesAreRefused) {
  const auto said = [](const LayerChoice& choice, const char* name = "llama") {
    const model::ModelConfig config = model::read_model_config(golden_folder(name));
    return error_of<ConfigError>([&] { model::check_layer_choice(choice, config, model::global_tensors(config)); });
  };
  EXPECT_EQ(said({.modules = {"self_attn", "mlp"}, .extra = {"norm"}}), "");
  const std::string module = said({.modules = {"attn"}});
  expect_contains(module, "freeze_trainable_modules: the model has no module attn in its layers");
  expect_contains(module, "all, input_layernorm, mlp, post_attention_layernorm and self_attn");
  const std::string extra = said({.extra = {"self_attn"}});
  expect_contains(extra, "freeze_extra_modules: the model has no module self_attn outside of its layers");
  expect_contains(extra, "embed_tokens, lm_head and norm");
  expect_contains(said({.extra = {"lm_head"}}, "qwen2"), "no module lm_head");  // tied: it is embed_tokens
  expect_contains(said({.layers = 3, .spread = true}), "the 4 layers of the model are not a multiple of");
}

// ---- In a model ----

TokenBatch batch_for(const std::filesystem::path& folder) {
  const at::Tensor ids = at::arange(32, at::kLong)
                             .mul(37)
                             .add(5)
                             .remainder(std::min<int64_t>(200, model::read_model_config(folder).vocab_size));
  return {ids, ids.roll(3), ops::SequenceLayout::dense(2, 16), 0.05};
}

// The gradients of trained weights are those of the run that trains all, and the others have none.
TEST(TrainedLayers, HaveTheSameGradientsAsInFullTraining) {
  for (const char* name : {"llama", "qwen2", "qwen3_moe"}) {
    const auto folder = golden_folder(name);
    const model::ModelConfig config = model::read_model_config(folder);
    const RunResult full = run_layout(folder, batch_for(folder), {});
    std::vector<LayoutCase> layouts{{}, {.main_grad = true}, {.tp = 2, .sequence_parallel = true, .main_grad = true}};
    layouts.push_back({.cp = 2});
    layouts.emplace_back().options.recompute.layers = model::RecomputePlan::Layers::kUniform;
    if (config.moe) layouts.push_back({.tp = 1, .dp = 2, .ep = 2, .etp = 1});
    for (const LayerChoice& choice : {LayerChoice{.layers = 1}, LayerChoice{.layers = -1, .modules = {"mlp"}},
                                      LayerChoice{.layers = 2, .extra = {"embed_tokens"}}}) {
      const Names trained = trained_in(name, choice);
      for (LayoutCase layout : layouts) {
        SCOPED_TRACE(fmt::format("{} {} layers {}", name, choice.layers, layout.name()));
        layout.options.trained_layers = choice;
        const RunResult run = run_layout(folder, batch_for(folder), layout);
        expect_close(run.token_losses, full.token_losses, "losses", 1e-4);
        for (const auto& [tensor, gradient] : run.gradients) {
          if (trained.contains(tensor))
            expect_close(gradient, full.gradients.at(tensor), tensor, 1e-4, 1e-6);
          else
            EXPECT_FALSE(gradient.any().item<bool>()) << tensor << " has a gradient";
        }
      }
    }
  }
}

}  // namespace
}  // namespace megalith::testing
