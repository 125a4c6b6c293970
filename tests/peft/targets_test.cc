#include "megalith/peft/targets.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/peft/name_pattern.h"
#include "tests/support/expect.h"

namespace megalith::testing {
namespace {

using peft::AdapterConfig;
using peft::NamePattern;

const hf::NameMap kMixtralNames{
    .rules = {{"model.layers.{}.self_attn.q_proj.weight", {"layers.{}.attention.q.weight"}},
              {"model.layers.{}.block_sparse_moe.gate.weight", {"layers.{}.mlp.router.weight"}},
              {"model.layers.{}.block_sparse_moe.experts.{}.w1.weight", {"layers.{}.mlp.experts.{}.gate.weight"}},
              {"model.layers.{}.block_sparse_moe.experts.{}.w2.weight", {"layers.{}.mlp.experts.{}.down.weight"}}}};

AdapterConfig on(std::vector<std::string> modules) {
  AdapterConfig config;
  config.target_modules = std::move(modules);
  return config;
}

TEST(AdapterTargets, FollowPeftsRules) {
  AdapterConfig config = on({"q_proj", "up_proj"});
  const auto is = [&](const char* module) { return peft::is_target(module, config); };
  EXPECT_TRUE(is("model.layers.11.self_attn.q_proj"));
  EXPECT_FALSE(is("model.layers.11.self_attn.xq_proj"));
  config.layers_to_transform = {1};
  EXPECT_TRUE(is("model.layers.1.mlp.experts.7.up_proj"));
  EXPECT_FALSE(is("model.layers.0.mlp.experts.1.up_proj")) << "the number of the layer is the first";
  config.layers_pattern = {NamePattern::layer("h"), NamePattern::layer("experts")};
  EXPECT_TRUE(is("model.layers.0.mlp.experts.1.up_proj"));
  EXPECT_TRUE(is("transformer.h.1.mlp.up_proj"));
  EXPECT_FALSE(is("model.layers.1.mlp.up_proj"));
  config = on({"q_proj"});
  config.exclude_modules = {"3.self_attn.q_proj"};
  EXPECT_FALSE(is("model.layers.3.self_attn.q_proj"));
  EXPECT_TRUE(is("model.layers.13.self_attn.q_proj"));
  config.exclude_pattern = NamePattern::whole(R"(.*\.1\d\..*)");
  EXPECT_FALSE(is("model.layers.13.self_attn.q_proj"));
  config = on({});
  config.target_pattern = NamePattern::whole(R"(.*\.(q|v)_proj)");
  EXPECT_TRUE(is("model.layers.3.self_attn.v_proj"));
  EXPECT_FALSE(is("model.layers.3.self_attn.v_proj.x")) << "the whole name";
}

TEST(AdapterTargets, HaveRanksAndScales) {
  AdapterConfig config = on({"q_proj", "gate"});
  config.target_parameters = {"experts.gate_up_proj"};
  config.rank_pattern = {{NamePattern::end("2.self_attn.q_proj"), 4}, {NamePattern::end("q_proj"), 2}};
  config.alpha_pattern = {{NamePattern::end("gate_up_proj"), 32}};
  const auto of = [&](const char* ours) { return peft::update_of(kMixtralNames, ours, config); };
  EXPECT_EQ(of("layers.2.attention.q.weight")->rank, 4);
  EXPECT_EQ(of("layers.12.attention.q.weight")->rank, 2);
  EXPECT_DOUBLE_EQ(of("layers.12.attention.q.weight")->scale, 8);
  EXPECT_EQ(of("layers.0.mlp.router.weight")->module, "model.layers.0.block_sparse_moe.gate");
  // Two halves of rank 4 in one tensor of rank 8; 32 / 8.
  EXPECT_EQ(of("layers.0.mlp.experts.5.gate.weight")->rank, 4);
  EXPECT_DOUBLE_EQ(of("layers.0.mlp.experts.5.gate.weight")->scale, 4);
  EXPECT_FALSE(of("layers.0.mlp.experts.5.down.weight"));
  config.stacked_experts = true;
  EXPECT_EQ(of("layers.0.mlp.experts.5.gate.weight")->rank, 8);
  config.stacked_experts = false;
  config.rank = 3;
  EXPECT_THROW(of("layers.0.mlp.experts.5.gate.weight"), ConfigError);
}

TEST(AdapterTargets, AreNamedAsInTransformers) {
  const auto expert = peft::expert_tensor(kMixtralNames, "model.layers.3.block_sparse_moe.experts.17.w1.weight");
  ASSERT_TRUE(expert);
  EXPECT_EQ(expert->parameter, "model.layers.3.mlp.experts.gate_up_proj");
  EXPECT_EQ(expert->projection, "w1");
  EXPECT_EQ(peft::file_name("model.layers.3.mlp.gate.weight", kMixtralNames),
            "model.layers.3.block_sparse_moe.gate.weight");
}

TEST(NamePattern, OfAnotherLanguageIsRefused) {
  expect_error<ConfigError>([] { NamePattern::whole("(?P<layer>x)"); }, {"(?P<layer>x) is not understood"});
}

// Before transformers 4.52 the language model and the tower of models that see had no word in front.
TEST(AdapterTargets, OfOlderNamesAreFound) {
  const hf::NameMap names{
      .rules = {{"model.language_model.layers.{}.self_attn.q_proj.weight", {"layers.{}.attention.q.weight"}},
                {"model.visual.blocks.{}.attn.qkv.weight", {"vision.blocks.{}.attention.qkv.weight"}},
                {"lm_head.weight", {"head.weight"}}}};
  EXPECT_EQ(peft::newer_name("model.layers.0.self_attn.q_proj", names),
            "model.language_model.layers.0.self_attn.q_proj");
  EXPECT_EQ(peft::newer_name("visual.blocks.0.attn.qkv", names), "model.visual.blocks.0.attn.qkv");
  for (const char* same :
       {"lm_head", "q_proj", "model.visual.blocks.0.attn.qkv", "model.language_model.layers.0.self_attn.q_proj"})
    EXPECT_EQ(peft::newer_name(same, names), same);
  EXPECT_EQ(peft::newer_name("model.layers.0.self_attn.q_proj", kMixtralNames), "model.layers.0.self_attn.q_proj");

  AdapterConfig config = on({"model.layers.0.self_attn.q_proj", "visual.blocks.1.attn.qkv"});
  config.rank_pattern = {{NamePattern::end("model.layers.0.self_attn.q_proj"), 4}};
  config = peft::with_newer_names(std::move(config), names);
  ASSERT_TRUE(peft::update_of(names, "layers.0.attention.q.weight", config));
  EXPECT_EQ(peft::update_of(names, "layers.0.attention.q.weight", config)->rank, 4);
  EXPECT_FALSE(peft::update_of(names, "layers.1.attention.q.weight", config));
  EXPECT_TRUE(peft::update_of(names, "vision.blocks.1.attention.qkv.weight", config));
}

}  // namespace
}  // namespace megalith::testing
