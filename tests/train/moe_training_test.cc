// Models with experts: the same training in every layout, and what a run tells of its routers.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>

#include "megalith/hf/weight_files.h"
#include "megalith/model/pretrained.h"
#include "tests/support/close.h"
#include "tests/support/temp_folder.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

using Change = std::function<void(TrainerCase&)>;

struct Sizes {
  int tp = 1, pp = 1, dp = 1, ep = 1;
  std::optional<int> etp{};
  std::optional<int> vpp{};
};

// 8 samples per step.
TrainerCase layout(const Sizes& sizes, const Change& change = {}) {
  TrainerCase c;
  c.name = fmt::format("tp {} pp {} dp {} ep {} etp {} vpp {}", sizes.tp, sizes.pp, sizes.dp, sizes.ep,
                       sizes.etp.value_or(sizes.tp), sizes.vpp.value_or(1));
  c.tp = sizes.tp, c.pp = sizes.pp, c.dp = sizes.dp, c.vpp = sizes.vpp;
  c.args.parallel.ep = sizes.ep;
  c.args.parallel.etp = sizes.etp;
  c.args.parallel.sequence_parallel = sizes.tp > 1;
  c.args.moe.token_dispatcher = config::TokenDispatcher::kAllToAll;
  c.args.batch.gradient_accumulation_steps = sizes.pp > 1 ? 4 / sizes.dp * 2 : 1;
  c.args.batch.micro_batch_size = 8 / sizes.dp / c.args.batch.gradient_accumulation_steps;
  if (change) change(c);
  return c;
}

void overlapped(TrainerCase& c) {
  c.args.optimizer.use_distributed_optimizer = true;
  c.args.ddp.overlap_grad_reduce = c.args.ddp.overlap_param_gather = true;
  c.args.ddp.bucket_size = 5000;
}
void gathered(TrainerCase& c) { c.args.moe.token_dispatcher = config::TokenDispatcher::kAllGather; }
void recomputed(TrainerCase& c) {
  overlapped(c);
  c.args.recompute.granularity = config::RecomputeGranularity::kFull;
}
void zero_bubble(TrainerCase& c) { c.args.pipeline.schedule = layout::ScheduleKind::kZeroBubble; }
void packed(TrainerCase& c) { c.collator.padding = data::Padding::kNone; }

std::vector<TrainerCase> moe_layouts() {
  return {layout({.dp = 2, .ep = 2}),
          layout({.dp = 2, .ep = 2}, gathered),
          layout({.dp = 4, .ep = 2}, overlapped),
          layout({.dp = 4, .ep = 4}, packed),
          layout({.tp = 2, .ep = 2, .etp = 1}),
          layout({.tp = 2, .etp = 2}, gathered),
          layout({.tp = 2, .dp = 2, .ep = 2, .etp = 2}, overlapped),
          layout({.tp = 2, .dp = 2, .ep = 4, .etp = 1}, recomputed),
          layout({.pp = 2, .dp = 2, .ep = 2}, overlapped),
          layout({.pp = 2, .dp = 2, .ep = 2}, zero_bubble),
          layout({.tp = 2, .pp = 2, .ep = 2, .etp = 1}, gathered),
          layout({.tp = 2, .pp = 2, .dp = 2, .ep = 2, .vpp = 2}, overlapped)};
}

void expect_same_moe_run(const RunLog& run, const RunLog& expected, const std::vector<std::string>& keys,
                         const std::string& name) {
  SCOPED_TRACE(name);
  for (const std::string& key : keys) {
    const std::vector<double> actual = run.numbers(key), right = expected.numbers(key);
    ASSERT_EQ(actual.size(), right.size()) << key;
    // AdamW magnifies rounding in experts that few tokens reach.
    for (size_t i = 0; i < right.size(); ++i) expect_close(actual[i], right[i], fmt::format("{} {}", key, i), 1e-4);
  }
  expect_close(*run.evaluation.find("eval_loss"), *expected.evaluation.find("eval_loss"), "eval_loss", 1e-4);
}

class MoeTraining : public ::testing::TestWithParam<const char*> {};

TEST_P(MoeTraining, IsTheSameInEveryLayout) {
  const auto folder = golden_folder(GetParam());
  const auto train = random_sequences(20, 256), eval = random_sequences(4, 256, 3);
  const RunLog alone = run_training(folder, layout({}), train, eval);
  ASSERT_EQ(alone.numbers("loss").size(), 4);
  EXPECT_EQ(alone.numbers("expert_load_max").size(), 4);
  for (const TrainerCase& each : moe_layouts())
    expect_same_moe_run(run_training(folder, each, train, eval), alone, {"loss", "grad_norm"}, each.name);
}

INSTANTIATE_TEST_SUITE_P(Models, MoeTraining, ::testing::Values("mixtral", "qwen2_moe", "qwen3_moe", "glm4_moe"),
                         [](const auto& test) { return std::string(test.param); });

// A run in which tokens travel while another micro-batch computes, beside the features that hook into passes: buckets,
// adapters, recomputed modules, losses of routers, fp8. Each gives the bits of the same run without it.
TEST(MoeOverlap, ChangesNoBitBesideOtherFeatures) {
  const auto modules = [](std::vector<std::string> names) {
    return [names](TrainerCase& c) {
      c.args.recompute.granularity = config::RecomputeGranularity::kSelective;
      c.args.recompute.modules = names;
      c.args.moe.shared_expert_overlap = true;
    };
  };
  const std::vector<std::pair<Sizes, Change>> cases{
      {{.dp = 2, .ep = 2}, overlapped},
      {{.pp = 2, .dp = 2, .ep = 2, .vpp = 2}, overlapped},
      {{.dp = 2, .ep = 2}, modules({"moe", "core_attn"})},
      {{.dp = 2, .ep = 2}, modules({"moe_act", "shared_experts", "layernorm"})},
      {{.dp = 2, .ep = 2},
       [](TrainerCase& c) {
         c.args.run.finetuning_type = config::FinetuningType::kLora;
         c.args.lora.rank = 4;
         c.args.lora.alpha = 8;
         c.args.lora.target = {"all"};
         c.args.lora.dropout = 0.1;
       }},
      {{.dp = 2, .ep = 2},
       [](TrainerCase& c) {
         c.args.precision.bf16 = true;
         c.args.precision.fp8 = config::Fp8Format::kHybrid;
         c.args.precision.fp8_recipe = "delayed";
       }},
      {{.tp = 2, .ep = 2, .etp = 1}, [](TrainerCase& c) {
         c.args.router.load_balancing_type = {"aux_loss", "global_aux_loss"};
         c.args.router.aux_loss_coeff = {0.05, 0.02};
         c.args.router.input_jitter_eps = 0.01;
       }}};
  const auto folder = golden_folder("glm4_moe");
  const auto train = random_sequences(16, 256), eval = random_sequences(4, 256, 3);
  for (const auto& [sizes, change] : cases) {
    TrainerCase apart = layout(sizes, change);
    apart.args.batch.gradient_accumulation_steps = 4;
    apart.args.batch.micro_batch_size = 2 / sizes.dp;
    TrainerCase together = apart;
    together.args.moe.overlap_expert_parallel_comm = true;
    SCOPED_TRACE(apart.name);
    const RunLog actual = run_training(folder, together, train, eval);
    const RunLog expected = run_training(folder, apart, train, eval);
    for (const char* key : {"loss", "grad_norm"}) EXPECT_EQ(actual.numbers(key), expected.numbers(key)) << key;
    EXPECT_GE(expected.numbers("loss").size(), 2U);
    EXPECT_EQ(*actual.evaluation.find("eval_loss"), *expected.evaluation.find("eval_loss"));
  }
}

// Losses of routers do not depend on how a micro-batch's tokens are spread over tensor-parallel ranks and stages.
TEST(MoeLosses, AreTheSameInEveryLayoutOfAMicrobatch) {
  const auto folder = golden_folder("qwen3_moe");
  const auto train = random_sequences(20, 256), eval = random_sequences(4, 256, 3);
  for (const bool per_token : {true, false}) {
    const auto with_losses = [per_token](TrainerCase& c) {
      c.args.ddp.calculate_per_token_loss = per_token;
      c.args.router.load_balancing_type = {"aux_loss", "seq_aux_loss", "global_aux_loss"};
      c.args.router.aux_loss_coeff = {0.05, 0.03, 0.02};
      c.args.router.z_loss_coeff = 0.01;
      c.args.moe.per_layer_logging = true;
      c.args.batch.gradient_accumulation_steps = 2;
      c.args.batch.micro_batch_size = 4;
      c.collator.padding = data::Padding::kNone;
      c.collator.length_multiple = 4;
    };
    const RunLog alone = run_training(folder, layout({}, with_losses), train, eval);
    const std::vector<std::string> keys{"loss",
                                        "grad_norm",
                                        "load_balancing_loss",
                                        "seq_load_balancing_loss",
                                        "global_load_balancing_loss",
                                        "z_loss",
                                        "expert_load_max",
                                        "expert_distributed_std",
                                        "max_token_per_expert",
                                        "moe/load_balancing_loss_layer_0",
                                        "moe/z_loss_layer_1"};
    for (const Sizes& sizes : {Sizes{.tp = 2}, Sizes{.tp = 2, .ep = 2, .etp = 1}, Sizes{.pp = 2}})
      expect_same_moe_run(run_training(folder, layout(sizes, with_losses), train, eval), alone, keys, "losses");
    const RunLog without = run_training(folder, layout({}), train, eval);
    EXPECT_NE(without.numbers("grad_norm")[0], alone.numbers("grad_norm")[0]);
  }
}

// The mean over layers is what it was; the layers of one stage are reported by the others as well.
TEST(MoeLosses, MayBeReportedByLayer) {
  const auto folder = golden_folder("qwen3_moe");
  const auto train = random_sequences(8, 256), eval = random_sequences(4, 256, 3);
  for (const int pp : {1, 2}) {
    const RunLog run = run_training(folder,
                                    layout({.pp = pp},
                                           [](TrainerCase& c) {
                                             c.args.router.aux_loss_coeff = {0.1};
                                             c.args.router.load_balancing_type = {"aux_loss"};
                                             c.args.moe.per_layer_logging = true;
                                             c.args.run.max_steps = 1;
                                           }),
                                    train, eval);
    std::vector<double> by_layer;
    for (const auto& [name, value] : run.lines.front())
      if (name.starts_with("moe/")) {
        EXPECT_EQ(name, fmt::format("moe/load_balancing_loss_layer_{}", by_layer.size()));
        by_layer.push_back(value);
      }
    ASSERT_GT(by_layer.size(), 1U);
    EXPECT_NE(by_layer[0], by_layer[1]);
    const double mean = std::accumulate(by_layer.begin(), by_layer.end(), 0.0) / static_cast<double>(by_layer.size());
    expect_close(mean, *run.lines.front().find("load_balancing_loss"), "mean over layers", 1e-6);
  }
}

// ROLL's numbers: those of a micro-batch, before dropping.
TEST(MoeLosses, TellHowEvenlyTokensSpread) {
  const auto folder = golden_folder("mixtral");
  const auto train = random_sequences(8, 256), eval = random_sequences(4, 256, 3);
  const auto metrics = [&](std::optional<double> capacity) {
    return run_training(folder,
                        layout({},
                               [&](TrainerCase& c) {
                                 c.args.router.aux_loss_coeff = {0.1};
                                 c.args.router.load_balancing_type = {"aux_loss"};
                                 c.args.moe.expert_capacity_factor = capacity;
                                 c.args.run.max_steps = 1;
                               }),
                        train, eval)
        .lines.front();
  };
  const train::MetricList line = metrics(std::nullopt);
  const double most = *line.find("max_token_per_expert"), spread = *line.find("expert_distributed_std");
  EXPECT_GT(spread, 0);
  EXPECT_GT(most, spread);
  // No expert takes more than half of the mean then; choices change only in layers that follow a dropped token.
  EXPECT_GT(*metrics(0.5).find("max_token_per_expert"), 0.75 * most);
}

TEST(MoeLosses, FallWhenTheyAreTrained) {
  const auto folder = golden_folder("mixtral");
  const auto train = random_sequences(16, 256), eval = random_sequences(4, 256, 3);
  const RunLog run = run_training(folder,
                                  layout({},
                                         [](TrainerCase& c) {
                                           c.args.router.aux_loss_coeff = {1.0};
                                           c.args.optimizer.learning_rate = 5e-3;
                                           c.args.run.max_steps = 12;
                                         }),
                                  train, eval);
  EXPECT_LT(run.numbers("load_balancing_loss").back(), run.numbers("load_balancing_loss").front());
}

TEST(MoeCapacity, DropsTokensAndSaysHowMany) {
  const auto folder = golden_folder("mixtral");
  const auto train = random_sequences(16, 256), eval = random_sequences(4, 256, 3);
  const RunLog run = run_training(
      folder, layout({.dp = 2, .ep = 2}, [](TrainerCase& c) { c.args.moe.expert_capacity_factor = 0.5; }), train, eval);
  const auto dropped = run.numbers("expert_tokens_dropped");
  ASSERT_EQ(dropped.size(), 4U);
  for (const double share : dropped) EXPECT_TRUE(share > 0.4 && share < 1) << share;
}

// The bias is a tensor of the checkpoint: loaded, moved, written, the same on all ranks.
TEST(MoeBias, MovesAgainstTheLoadAndIsExported) {
  const auto folder = golden_folder("glm4_moe");
  const std::string name = "model.layers.1.mlp.gate.e_score_correction_bias";
  const at::Tensor before = hf::WeightFiles(folder).tensor(name).clone();
  for (const double rate : {0.0, 0.25}) {
    const TempFolder out;
    TrainerCase how = layout({.tp = 2, .dp = 2, .ep = 2, .etp = 1});
    how.args.router.bias_update_rate = rate;
    how.args.run.max_steps = 1;
    run_trainer_ranks(folder, how, [&](const TrainerRank& r) {
      train::Trainer trainer(r.models, r.settings(), r.setup(dataset_of(random_sequences(8, 256))));
      trainer.train();
      model::save_pretrained(r.models, out.path() / "model", {});
    });
    const at::Tensor moved = hf::WeightFiles(out.path() / "model").tensor(name) - before;
    expect_close(moved.abs().max().item<double>(), rate, "largest step", 1e-5, 1e-6);
  }
}

// A model that is loaded in one layout and written in another gives the same file.
TEST(MoeExport, IsIdenticalInEveryLayout) {
  for (const char* model : {"mixtral", "qwen2_moe", "qwen3_moe", "glm4_moe"})
    for (const Sizes& sizes : {Sizes{}, Sizes{.dp = 4, .ep = 2}, Sizes{.tp = 2, .dp = 2, .ep = 2, .etp = 2},
                               Sizes{.tp = 2, .pp = 2, .ep = 2, .etp = 1}}) {
      const auto folder = golden_folder(model);
      const TempFolder out;
      run_trainer_ranks(folder, layout(sizes),
                        [&](const TrainerRank& r) { model::save_pretrained(r.models, out.path() / "model", {}); });
      const hf::WeightFiles given(folder), written(out.path() / "model");
      ASSERT_EQ(written.names().size(), given.names().size()) << model;
      for (const std::string& name : given.names()) expect_identical(written.tensor(name), given.tensor(name), name);
    }
}

}  // namespace
}  // namespace megalith::testing
