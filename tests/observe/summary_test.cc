#include "megalith/observe/summary.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/expect.h"

namespace megalith::observe {
namespace {

TEST(Summary, Start) {
  StartSummary summary;
  summary.model = "llama, 4 layers of width 256";
  summary.parameters = 5'242'880;
  summary.fewest_on_rank = 1'310'720;
  summary.most_on_rank = 1'572'864;
  summary.world_size = 4;
  summary.axes = {{"tp", 2}, {"pp", 2}, {"dp", 1}};
  summary.machinery = "gloo on CPU, fp32";
  summary.fp8 = "71.2 % of the FLOPs";
  summary.bf16 = {"20.0 % head: why", "8.8 % routers: why"};
  summary.memory_bytes = {{"parameters", 5 << 20}, {"gradients", 5 << 20}, {"optimizer", 10 << 20}};
  summary.data = {{"train", "1,024 sequences"}, {"evaluation", "64 sequences"}};
  summary.micro_batch_size = 2;
  summary.microbatches = 4;
  summary.sequence_length = 256;
  summary.max_steps = 1000;
  summary.epochs = 7.8125;
  summary.output_dir = "out";
  EXPECT_EQ(text_of(summary),
            "model       llama, 4 layers of width 256: 5,242,880 parameters, 1,310,720 to 1,572,864 per rank\n"
            "layout      4 ranks = tp 2 x pp 2; gloo on CPU, fp32\n"
            "fp8         71.2 % of the FLOPs\n"
            "bf16        20.0 % head: why\n"
            "bf16        8.8 % routers: why\n"
            "memory      20.0 MiB per rank: parameters 5.0 MiB, gradients 5.0 MiB, optimizer 10.0 MiB\n"
            "data        train: 1,024 sequences; evaluation: 64 sequences\n"
            "batch       2 sequences x 4 micro-batches x 1 replica = 8 sequences, at most 2,048 tokens per step\n"
            "run         1,000 steps (7.81 epochs)\n"
            "output      out\n");
}

TEST(Summary, LayoutNamesTheRanksOfExperts) {
  const StartSummary summary{.world_size = 4,
                             .axes = {{"tp", 2}, {"dp", 2}},
                             .expert_axes = {{"etp", 1}, {"ep", 4}, {"edp", 1}},
                             .machinery = "gloo on CPU, fp32"};
  EXPECT_EQ(text_of(summary), "layout      4 ranks = tp 2 x dp 2, for experts ep 4; gloo on CPU, fp32\n");
}

TEST(Summary, StartOfOneRankWithLittleToSay) {
  EXPECT_EQ(text_of(StartSummary{.model = "gpt2", .resumed_step = 5}), "model       gpt2\nlayout      1 rank\n");
  StartSummary summary{
      .model = "m", .fewest_on_rank = 10, .most_on_rank = 10, .world_size = 2, .max_steps = 1, .resumed_step = 1234};
  EXPECT_EQ(text_of(summary),
            "model       m, 10 per rank\nlayout      2 ranks\nrun         1 step, resumed after step 1,234\n");
}

TEST(Summary, End) {
  EndSummary summary;
  summary.steps = summary.last_step = summary.max_steps = 1000;
  summary.seconds = 123;
  summary.tokens = 2'048'000;
  summary.padding = 279'000;
  summary.first_loss = 8.31764;
  summary.last_loss = 2.34561;
  summary.best_metric = 2.25;
  summary.best_metric_name = "eval_loss";
  summary.peak_bytes = 50 << 20;
  summary.files = {{"model", "out"}, {"plot", "out/loss.svg"}};
  summary.wandb_folder = "out/tensorboard";
  EXPECT_EQ(text_of(summary),
            "done        1,000 steps in 0:02:03 (8.13 steps/s, 16.7k tokens/s, 12 % padding)\n"
            "loss        8.3176 -> 2.3456; best eval_loss 2.2500\n"
            "memory      50.0 MiB at most per rank\n"
            "model       out\n"
            "plot        out/loss.svg\n"
            "wandb       nothing was sent; to upload: wandb sync out/tensorboard\n");
}

TEST(Summary, EndFromStateAndSettings) {
  ReportSettings settings{.output_dir = "out", .tensorboard_dir = "out/tensorboard", .wandb = true};
  train::TrainerState state;
  state.global_step = state.max_steps = 30;
  state.best_metric = 2;
  state.log_history = {{{"loss", 9}, {"step", 10}},  // before the resume
                       {{"loss", 4}, {"step", 20}},
                       {{"eval_loss", 2}, {"step", 20}},
                       {{"loss", 3}, {"step", 30}},
                       {{"train_loss", 5}, {"step", 30}}};
  EXPECT_EQ(text_of(end_summary(settings, state, 10, 40)),
            "done        20 steps in 0:00:40 (0.50 steps/s)\n"
            "loss        4.0000 -> 3.0000; best eval_loss 2.0000\n"
            "metrics     out/metrics.jsonl\n"
            "plot        out/loss.svg\n"
            "tensorboard out/tensorboard\n"
            "wandb       nothing was sent; to upload: wandb sync out/tensorboard\n");
  state.log_history[3] = {{"loss", std::nan("")}, {"step", 30}};  // diverged
  testing::expect_contains(text_of(end_summary(settings, state, 10, 40)), "loss        4.0000 -> nan; best");
  settings = {};
  EXPECT_EQ(text_of(end_summary(settings, train::TrainerState{}, 0, 0)), "done        0 steps in 0:00:00\n");
}

TEST(Summary, EndOfARunThatWasStopped) {
  EXPECT_EQ(text_of(EndSummary{.steps = 5, .last_step = 25, .max_steps = 100, .seconds = 10}),
            "done        5 steps, stopped at step 25 of 100, in 0:00:10 (0.50 steps/s)\n");
  EXPECT_EQ(text_of(EndSummary{}), "done        0 steps in 0:00:00\n");
}

}  // namespace
}  // namespace megalith::observe
