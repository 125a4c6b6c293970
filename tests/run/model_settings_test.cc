// From options, as a user writes them, to what a model takes.
#include "megalith/run/resolve/model_settings.h"

#include <gtest/gtest.h>

#include "megalith/config/derive.h"
#include "megalith/config/parser.h"
#include "megalith/run/resolve/adapter_source.h"
#include "tests/model/model_support.h"
#include "tests/support/golden_adapter.h"

namespace megalith::testing {
namespace {

using Words = std::vector<std::string>;

config::TrainingArguments arguments(const Words& words) {
  return config::parse_arguments(config::Dialect::kTrain, words).args;
}

model::ModelOptions options(const Words& words) { return run::model_options(arguments(words), at::kCPU); }

model::ModelOverrides overrides(const Words& words) {
  return run::model_overrides(config::derive(arguments(words)).args);
}

TEST(ModelOptions, FollowTheArguments) {
  EXPECT_EQ(options({}).dtype, at::kFloat);
  EXPECT_EQ(options({"--bf16"}).dtype, at::kBFloat16);
  EXPECT_EQ(options({"--fp16"}).dtype, at::kHalf);
  EXPECT_EQ(options({"--bf16"}).stream_dtype(), at::kBFloat16);
  EXPECT_EQ(options({"--bf16", "--fp32_residual_connection"}).stream_dtype(), at::kFloat);
  EXPECT_TRUE(options({"--tp", "2", "--sequence_parallel"}).sequence_parallel);
  EXPECT_GT(options({"--cross_entropy_loss_fusion"}).loss_chunk, 0);
  EXPECT_EQ(options({}).loss_chunk, 0);
  EXPECT_EQ(options({"--make_vocab_size_divisible_by", "64"}).vocab_multiple, 64);
}

TEST(ModelOptions, RecomputeInEverySpelling) {
  using Layers = model::RecomputePlan::Layers;
  EXPECT_EQ(options({}).recompute.layers, Layers::kNone);
  EXPECT_EQ(options({"--gradient_checkpointing"}).recompute.layers, Layers::kUniform);
  const auto block =
      options({"--recompute_granularity", "full", "--recompute_method", "block", "--recompute_num_layers", "3"});
  EXPECT_EQ(block.recompute.layers, Layers::kBlock);
  EXPECT_EQ(block.recompute.num_layers, 3);
  EXPECT_TRUE(options({"--recompute_granularity", "selective"}).recompute.core_attention);
  const auto chosen = options({"--recompute_granularity", "selective", "--recompute_modules", "mlp,layernorm"});
  EXPECT_FALSE(chosen.recompute.core_attention);
  EXPECT_TRUE(chosen.recompute.mlp);
  EXPECT_TRUE(chosen.recompute.norms);
  const auto experts = options({"--recompute_granularity", "selective", "--recompute_modules", "moe_act"});
  EXPECT_TRUE(experts.moe.recompute_activation);
  EXPECT_FALSE(experts.moe.recompute_shared);
}

TEST(ModelOverrides, AreWhatWasGiven) {
  const auto in_files = model::read_model_config(golden_folder("gpt2"));
  const auto changed = overrides({"--hidden_dropout", "0.2", "--attention_dropout", "0.3"}).applied_to(in_files);
  EXPECT_EQ(changed.hidden_dropout, 0.2);
  EXPECT_EQ(changed.embedding_dropout, 0.2);
  EXPECT_EQ(changed.attention_dropout, 0.3);
  EXPECT_EQ(overrides({}).applied_to(in_files).hidden_dropout, in_files.hidden_dropout);
  EXPECT_FALSE(overrides({}).mtp_layers);
  EXPECT_EQ(overrides({"--mtp_num_layers", "2"}).mtp_layers, 2);
}

TEST(ModelOverrides, BalanceLossesByTypeAndCoefficient) {
  using Kind = nn::BalanceLoss::Kind;
  const auto losses = [](const Words& words) { return overrides(words).router.losses; };
  EXPECT_FALSE(losses({}));
  const auto plain = losses({"--moe_aux_loss_coeff", "0.01"});
  ASSERT_EQ(plain->size(), 1);
  EXPECT_EQ(plain->at(0).kind, Kind::kBatch);
  EXPECT_EQ(plain->at(0).coeff, 0.01);
  const auto typed = losses({"--moe_router_load_balancing_type", "seq_aux_loss"});
  ASSERT_EQ(typed->size(), 1);
  EXPECT_EQ(typed->at(0).kind, Kind::kSequence);
  EXPECT_FALSE(typed->at(0).coeff) << "that of the model's files";
  EXPECT_TRUE(losses({"--moe_router_load_balancing_type", "none"})->empty());
  const auto sinkhorn = overrides({"--moe_router_load_balancing_type", "sinkhorn"}).router;
  EXPECT_TRUE(sinkhorn.sinkhorn);
  EXPECT_TRUE(sinkhorn.losses->empty());
}

TEST(ModelSettings, HoldSeedAndSplit) {
  const model::ModelSettings settings = run::model_settings(
      config::derive(arguments({"--seed", "7", "--pp", "2", "--pipeline_model_parallel_layout", "Et|ttt|t|L"})).args,
      at::kCPU);
  EXPECT_EQ(settings.seed, 7);
  EXPECT_EQ(settings.stages.vpp, 2);
  EXPECT_EQ(settings.stages.layout->num_stages(), 4);
  EXPECT_EQ(settings.options.device, at::Device(at::kCPU));
}

TEST(AdapterSource, AllButTheLastAreMerged) {
  const std::filesystem::path r8 = read_golden_adapter("llama_r8").folder,
                              rslora = read_golden_adapter("llama_rslora").folder;
  using Folders = std::vector<std::filesystem::path>;
  config::TrainingArguments args;
  args.lora.adapter_name_or_path = {r8.string(), rslora.string()};
  const model::AdapterSource last = run::adapter_source(args);
  EXPECT_EQ(last.merged, Folders{r8});
  EXPECT_EQ(last.trained, rslora);
  EXPECT_EQ(run::adapter_source(args, "out/checkpoint-3").trained, "out/checkpoint-3");
  args.lora.create_new_adapter = true;
  const model::AdapterSource fresh = run::adapter_source(args);
  EXPECT_EQ(fresh.merged, (Folders{r8, rslora}));
  EXPECT_FALSE(fresh.trained);
}

TEST(AdapterSource, HoldsTheNewAdapterAndItsBase) {
  const model::AdapterSource plain = run::adapter_source({});
  EXPECT_EQ(plain.fresh.rank, 8);
  EXPECT_EQ(plain.fresh.alpha, 16);
  EXPECT_EQ(plain.fresh.target_modules, Words{"all"});
  EXPECT_TRUE(plain.base_name.empty());
  EXPECT_FALSE(plain.fresh_base);
  const model::AdapterSource asked = run::adapter_source(
      arguments({"--lora_rank", "4", "--lora_alpha", "2", "--lora_target", "q_proj,v_proj", "--additional_target",
                 "embed_tokens", "--model_name_or_path", "org/tiny", "--train_from_scratch"}));
  EXPECT_EQ(asked.fresh.rank, 4);
  EXPECT_EQ(asked.fresh.alpha, 2);
  EXPECT_EQ(asked.fresh.target_modules, (Words{"q_proj", "v_proj"}));
  EXPECT_EQ(asked.fresh.modules_to_save, Words{"embed_tokens"});
  EXPECT_EQ(asked.base_name, "org/tiny");
  EXPECT_TRUE(asked.fresh_base);
  EXPECT_TRUE(asked.fresh.base_model.empty());
}

}  // namespace
}  // namespace megalith::testing
