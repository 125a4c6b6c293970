// Options that follow from others, by dialect: each case gives words and looks at the derived arguments. Deriving twice
// must change nothing.
#include "megalith/config/derive.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/config/enums.h"
#include "megalith/config/model_config.h"
#include "megalith/config/run_config.h"
#include "megalith/config/validate.h"
#include "tests/config/parse_support.h"
#include "tests/support/golden.h"

namespace megalith::config {
namespace {

EffectiveArguments derived(const Words& words, Dialect dialect = Dialect::kTrain) {
  const EffectiveArguments effective = derive(args_of(words, dialect));
  EXPECT_EQ(derive(effective.args).args, effective.args) << "deriving twice must change nothing";
  return effective;
}

bool warns(const EffectiveArguments& effective, const std::string& part) {
  for (const std::string& warning : effective.warnings)
    if (warning.find(part) != std::string::npos) return true;
  return false;
}

TEST(Derive, EmptySizesAreOneAndEtpFollowsTp) {
  const auto args = derived({"--tp=4"}).args;
  EXPECT_EQ(args.parallel.pp, 1);
  EXPECT_EQ(args.parallel.etp, 4);
}

TEST(Derive, SequenceParallelFollowsTp) {
  const auto off = derived({"--sequence_parallel"});
  EXPECT_FALSE(off.args.parallel.sequence_parallel);
  EXPECT_TRUE(warns(off, "sequence_parallel"));
  const auto on = derived({"--tp=2", "--ep=2"});
  EXPECT_TRUE(on.args.parallel.sequence_parallel);
  EXPECT_TRUE(warns(on, "sequence_parallel"));
  EXPECT_TRUE(derived({"--tp=2", "--num_experts=8"}).args.parallel.sequence_parallel);
  EXPECT_FALSE(derived({"--tp=2"}).args.parallel.sequence_parallel);
}

TEST(Derive, ExpertsOfOneRankHaveNoExchangeToOverlap) {
  const Words asked{"--overlap_moe_expert_parallel_comm", "--num_experts=8"};
  const auto off = derived(asked);
  EXPECT_FALSE(off.args.moe.overlap_expert_parallel_comm);
  EXPECT_FALSE(pipeline_shape(off.args, 4).paired);
  EXPECT_TRUE(warns(off, "overlap_moe_expert_parallel_comm is switched off: expert_model_parallel_size is 1"));
  Words split = asked;
  split.emplace_back("--ep=2");
  const auto on = derived(split);
  EXPECT_TRUE(pipeline_shape(on.args, 4).paired);
  EXPECT_FALSE(pipeline_shape(on.args, 4, /*forward_only=*/true).paired);
  EXPECT_FALSE(warns(on, "overlap_moe_expert_parallel_comm"));
}

TEST(Derive, TensorParallelOverlapSaysWhatItLeavesWhole) {
  const Words words{"--sequence_parallel", "--tp_comm_overlap", "--tp_comm_overlap_slices=2"};
  const auto with = [&](Words more) {
    more.insert(more.end(), words.begin(), words.end());
    return derived(more);
  };
  const auto off = with({});
  EXPECT_FALSE(off.args.parallel.tp_comm_overlap);
  EXPECT_EQ(off.args.parallel.tp_comm_overlap_slices, std::nullopt);
  EXPECT_TRUE(warns(off, "tp_comm_overlap is switched off: tensor_model_parallel_size is 1"));
  const auto on = with({"--tp=2", "--finetuning_type=full"});
  EXPECT_TRUE(on.args.parallel.tp_comm_overlap);
  EXPECT_FALSE(warns(on, "tp_comm_overlap"));
  EXPECT_TRUE(warns(with({"--tp=2", "--finetuning_type=lora"}), "tp_comm_overlap does not slice the products of"));
  EXPECT_TRUE(
      warns(with({"--tp=2", "--finetuning_type=full", "--bf16", "--fp8=hybrid"}), "it does not slice products in fp8"));
}

TEST(Derive, VirtualSizeFromLayout) {
  EXPECT_EQ(derived({"--pp=2", "pipeline_model_parallel_layout=Et|t|t|tL"}).args.pipeline.vpp, 2);
  EXPECT_EQ(derived({"--pp=4", "pipeline_model_parallel_layout=Et|t|t|tL"}).args.pipeline.vpp, std::nullopt);
  const auto args = derived({"--pp=2", "--num_layers=16", "--num_layers_per_virtual_pipeline_stage=2"}).args;
  EXPECT_EQ(args.pipeline.vpp, 4);
  EXPECT_EQ(args.pipeline.microbatch_group_size, 2);
}

TEST(Derive, OverlapP2pNeedsVirtualStages) {
  EXPECT_FALSE(derived({"--pp=2"}).args.pipeline.overlap_p2p_comm);
  EXPECT_TRUE(derived({"--pp=2", "--vpp=2"}).args.pipeline.overlap_p2p_comm);
}

TEST(Derive, Recompute) {
  const auto full = derived({"--recompute_granularity=full"}).args.recompute;
  EXPECT_EQ(full.method, RecomputeMethod::kUniform);
  EXPECT_EQ(full.num_layers, 1);
  EXPECT_EQ(derived({"--gradient_checkpointing"}).args.recompute.granularity, RecomputeGranularity::kFull);
  EXPECT_EQ(derived({"--recompute-activations"}).args.recompute.modules, Words{"core_attn"});
}

TEST(Derive, Precision) {
  EXPECT_TRUE(derived({"--bf16"}).args.precision.accumulate_allreduce_grads_in_fp32);
  EXPECT_FALSE(derived({"--bf16", "--grad_reduce_in_bf16"}).args.precision.accumulate_allreduce_grads_in_fp32);
  const auto fp16 = derived({"--fp16"});
  EXPECT_FALSE(fp16.args.ddp.check_for_nan_in_loss_and_grad);
  EXPECT_TRUE(warns(fp16, "check_for_nan_in_loss_and_grad"));
  EXPECT_EQ(derived({"--optim=sgd"}).args.optimizer.optimizer, OptimizerKind::kSgd);
}

TEST(Derive, Experts) {
  EXPECT_EQ(derived({"--num_experts=32"}).args.router.dtype, RouterDtype::kFp32);
  EXPECT_EQ(derived({"--num_experts=31"}).args.router.dtype, std::nullopt);
  EXPECT_EQ(derived({"--moe_expert_capacity_factor=-1"}).args.moe.expert_capacity_factor, std::nullopt);
  EXPECT_EQ(derived({}).args.moe.token_dispatcher, TokenDispatcher::kAllToAll);
  const std::string gathered = "--moe_token_dispatcher_type=allgather";
  EXPECT_EQ(derived({gathered}).args.moe.token_dispatcher, TokenDispatcher::kAllGather);
  EXPECT_EQ(derived({gathered, "--variable_seq_lengths"}).args.moe.token_dispatcher, TokenDispatcher::kAllToAll);
}

TEST(Derive, ShapeOfMegatron) {
  const Words words{"--hidden-size", "4096", "--num-attention-heads", "32"};
  const auto plain = derived(words, Dialect::kPretrain).args.shape;
  EXPECT_EQ(plain.ffn_hidden_size, 16384);
  EXPECT_EQ(plain.kv_channels, 128);
  EXPECT_EQ(plain.num_query_groups, 32);
  Words gated = words;
  gated.push_back("--swiglu");
  EXPECT_EQ(derived(gated, Dialect::kPretrain).args.shape.ffn_hidden_size, 10880);
}

// Transformer Engine's default in Megatron is the recipe whose options need no recipe to be named.
TEST(Derive, RecipeOfFp8) {
  const Words words{"--bf16", "--fp8=hybrid"};
  EXPECT_EQ(derived(words, Dialect::kPretrain).args.precision.fp8_recipe, "delayed");
  EXPECT_EQ(derived(words).args.precision.fp8_recipe, "tensorwise");
  EXPECT_EQ(derived({"--bf16"}, Dialect::kPretrain).args.precision.fp8_recipe, std::nullopt);
  const Words history{"--bf16", "--fp8-format", "hybrid", "--fp8-amax-history-len", "1024"};
  EXPECT_EQ(derived(history, Dialect::kPretrain).args.precision.fp8_amax_history_len, 1024);
}

TEST(Derive, RunAndData) {
  const auto neither = derived({});
  EXPECT_TRUE(neither.args.run.do_train);
  EXPECT_TRUE(warns(neither, "do_train"));
  const auto eval = derived({"--do_train", "--eval_strategy=steps", "--logging_steps=10"}).args;
  EXPECT_TRUE(eval.run.do_eval);
  EXPECT_EQ(eval.eval.steps, 10);
  const auto best = derived({"--load_best_model_at_end"}).args.eval;
  EXPECT_EQ(best.metric_for_best_model, "eval_loss");
  EXPECT_EQ(best.greater_is_better, false);
  EXPECT_EQ(derived({"--lora_rank=16", "--lora_alpha=0"}).args.lora.alpha, 32);
  EXPECT_EQ(derived({"--stage=pt"}).args.data.packing, true);
  EXPECT_EQ(derived({"--sequence_packing"}).args.data.packing, true);
  EXPECT_EQ(derived({"--disable_shuffling"}).args.sampler.train_sampling_strategy, SamplingStrategy::kSequential);
  EXPECT_TRUE(warns(derived({"--data-path", "a"}, Dialect::kPretrain), "split"));
}

TEST(Derive, Reports) {
  const auto effective = derived({"--report_to", "wandb", "mlflow", "tensorboard"});
  EXPECT_EQ(effective.args.logging.report_to, (Words{"wandb", "tensorboard"}));
  EXPECT_TRUE(warns(effective, "mlflow"));
  EXPECT_EQ(derived({"--report_to=all"}).args.logging.report_to, Words{"tensorboard"});
  // Megatron switches it off without use_persistent_ckpt_worker.
  EXPECT_TRUE(derived({"--async-save"}, Dialect::kPretrain).args.checkpoint.async_save);
}

TEST(Derive, ADeepspeedFileShardsTheOptimizer) {
  const auto optimizer = [](const char* zero) {
    const auto effective = derived({fmt::format(R"(--deepspeed={{"zero_optimization": {}, "bf16": "auto"}})", zero)});
    EXPECT_EQ(warns(effective, "deepspeed"), effective.args.optimizer.use_distributed_optimizer);
    return effective.args.optimizer;
  };
  EXPECT_FALSE(optimizer(R"({"stage": 0})").use_distributed_optimizer);
  EXPECT_TRUE(optimizer(R"({"stage": 1})").use_distributed_optimizer);
  const OptimizerConfig offloaded = optimizer(R"({"stage": 2, "offload_optimizer": {"device": "cpu"}})");
  EXPECT_TRUE(offloaded.use_distributed_optimizer && offloaded.cpu_offload);
  EXPECT_EQ(offloaded.offload_fraction, 1);
}

TEST(Derive, BatchPlan) {
  const auto batch = [](const Words& words, int dp) {
    return layout::MicrobatchCalculator(batch_plan(args_of(words), dp)).at(0);
  };
  EXPECT_EQ(batch({"--per_device_train_batch_size=2", "--gradient_accumulation_steps=4"}, 3).global_batch_size, 24);
  EXPECT_EQ(batch({"--micro_batch_size=2", "--global_batch_size=24"}, 3).num_microbatches, 4);
  EXPECT_EQ(
      batch({"--micro_batch_size=1", "--step_batch_size_schedule=0:8 1K:16", "--seq_length=10"}, 4).num_microbatches,
      2);
}

// The launcher's own options, derived as it does. Layers that do not divide are an error there and balanced here.
TEST(GoldenLauncherVpp, layer_split) {
  const nlohmann::json golden = testing::golden_json("parallel/layer_split.json");
  ASSERT_FALSE(golden.at("launcher_vpp").empty());
  for (const auto& item : golden.at("launcher_vpp")) {
    SCOPED_TRACE(item.dump());
    Words words;
    for (const auto& [key, value] : item.at("args").items())
      words.push_back(key + "=" + (value.is_string() ? value.get<std::string>() : value.dump()));
    const TrainingArguments args = args_of(words, Dialect::kPretrain);
    const ValidationContext preview{.world_size = std::nullopt, .needs_inputs = false};
    if (item.contains("rejected")) {
      // Layers per virtual stage say nothing about a split that is uneven.
      const bool only_uneven =
          item.at("rejected").get<std::string>().find("do not divide evenly") != std::string::npos &&
          !item.at("args").contains("num_layers_per_virtual_pipeline_stage");
      EXPECT_EQ(problems(args, preview).empty(), only_uneven);
      continue;
    }
    EXPECT_EQ(problems(args, preview), Words{});
    const TrainingArguments effective = derive(args).args;
    EXPECT_EQ(effective.pipeline.vpp,
              item.at("vpp").is_null() ? std::nullopt : std::optional<int>(item.at("vpp").get<int>()));
    EXPECT_EQ(effective.pipeline.overlap_p2p_comm, item.at("overlap_p2p_comm").get<bool>());
  }
}

}  // namespace
}  // namespace megalith::config
