// megatron_gpt: each switch of its config.json against the plain model, and in other layouts. The lattice of
// tests/parity adds pipelines and all switches at once.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>

#include "megalith/base/error.h"
#include "tests/model/layout_case.h"
#include "tests/model/model_support.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/reference_model.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

struct Switch {
  std::string name;
  std::function<void(ReferenceConfig&)> set;
};

const std::vector<Switch> kSwitches{
    {"layer norm with rotary positions", [](ReferenceConfig& c) { c.layer_norm = true; }},
    {"plain MLP",
     [](ReferenceConfig& c) { c.gated_mlp = false, c.activation = "gelu", c.mlp_bias = c.out_bias = true; }},
    {"squared relu", [](ReferenceConfig& c) { c.gated_mlp = false, c.activation = "relu2"; }},
    {"learned positions with RMSNorm", [](ReferenceConfig& c) { c.learned_positions = true; }},
    {"half of a head rotates", [](ReferenceConfig& c) { c.rope.partial_rotary_factor = 0.5; }},
    {"neighbors rotate", [](ReferenceConfig& c) { c.rope.interleaved = true; }},
    {"gate", [](ReferenceConfig& c) { c.gated_attention = true; }},
    {"LayerNorm on queries and keys", [](ReferenceConfig& c) { c.layer_norm = c.qk_norm = true; }},
    {"windows",
     [](ReferenceConfig& c) {
       c.windows = {0, 5};
     }},
    {"plain experts with LayerNorm",
     [](ReferenceConfig& c) {
       c.layer_norm = true;
       c.gated_mlp = false;
       c.activation = "gelu";
       c.experts = ReferenceExperts{.shared_width = 24, .first_dense = 1};
     }},
    {"latent attention with softmax experts", [](ReferenceConfig& c) {
       c.latent.emplace();
       c.num_kv_heads = c.num_heads;
       c.head_dim = c.latent->rope;
       c.rope.interleaved = true;
       c.experts = ReferenceExperts{.normalize = false, .scale = 2};
     }}};

ReferenceConfig config_with(const Switch& each) {
  ReferenceConfig config = ReferenceConfig::of_family("megatron_gpt");
  each.set(config);
  if (config.out_bias) config.qkv_bias = true;
  return config;
}

TokenBatch switch_batch(int64_t vocabulary) {
  at::Generator generator = at::detail::createCPUGenerator(7);
  const at::Tensor ids = at::randint(vocabulary, {32}, generator, at::kLong);
  return {.ids = ids, .labels = ids, .layout = ops::SequenceLayout::dense(2, 16), .loss_scale = 1.0 / 30};
}

std::vector<LayoutCase> layouts_for(const ReferenceConfig& config) {
  std::vector<LayoutCase> layouts{{}, {.tp = 2, .sequence_parallel = true}, {.cp = 2}};
  if (config.experts) {
    layouts.push_back({.dp = 2, .ep = 2});
    layouts.push_back({.tp = 2, .sequence_parallel = true, .dp = 2, .ep = 2, .etp = 2});
  } else {
    layouts.push_back({.tp = 4});
  }
  return layouts;
}

// Gradients of the plain model in fp64 are the yardstick.
TEST(MegatronGpt, EverySwitchIsThePlainModelInEveryLayout) {
  for (const Switch& each : kSwitches) {
    SCOPED_TRACE(each.name);
    const ReferenceConfig config = config_with(each);
    const ReferenceModel made = ReferenceModel::random(config, 3);
    const TempFolder folder;
    made.save(folder.path());
    const ReferenceModel plain = made.to(at::kDouble);
    const TokenBatch batch = switch_batch(config.vocab_size);
    const at::Tensor ids = batch.ids.view({2, 16});
    const ReferenceOutput out = plain.forward(ids);
    const at::Tensor losses = reference_token_losses(out.logits, ids);
    (losses.sum() * batch.loss_scale).backward();
    for (const LayoutCase& layout : layouts_for(config)) {
      SCOPED_TRACE(layout.name());
      const RunResult run = run_layout(folder.path(), batch, layout);
      expect_close(run.token_losses, losses.detach().flatten().to(at::kFloat), "losses");
      expect_close(run.logits, out.logits.detach().flatten(0, 1).to(at::kFloat), "logits");
      for (const auto& [name, gradient] : run.gradients) expect_close(gradient, plain.grad(name).to(at::kFloat), name);
    }
  }
}

// A switch that a reader ignored would change nothing.
TEST(MegatronGpt, EverySwitchChangesTheModel) {
  const auto logits = [](const ReferenceConfig& config) {
    const TempFolder folder;
    ReferenceModel::random(config, 3).save(folder.path());
    return run_layout(folder.path(), switch_batch(config.vocab_size), {}).logits;
  };
  const at::Tensor without = logits(ReferenceConfig::of_family("megatron_gpt"));
  for (const Switch& each : kSwitches)
    EXPECT_GT((logits(config_with(each)) - without).abs().max().item<double>(), 1e-3) << each.name;
}

TEST(MegatronGpt, UnknownValuesAreNamed) {
  const nlohmann::json good = ReferenceConfig::of_family("megatron_gpt").to_json();
  const auto error = [&](const char* key, const char* value) {
    nlohmann::json config = good;
    config[key] = value;
    try {
      model::read_model_config(io::parse_json_file(config.dump(), "config.json"));
    } catch (const DataError& problem) {
      return std::string(problem.what());
    }
    return std::string();
  };
  expect_contains(error("normalization", "ScaleNorm"), "RMSNorm or LayerNorm");
  expect_contains(error("position_embedding_type", "alibi"), "rope, learned_absolute or none");
}

}  // namespace
}  // namespace megalith::testing
