// Runs that train some layers (finetuning_type freeze): what changes, how they continue, and their cost.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>

#include "megalith/hf/safetensors_file.h"
#include "megalith/train/saving/save_model.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/train/resume_case.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

config::TrainingArguments freeze_arguments(const fs::path& out, int64_t max_steps, int64_t save_steps) {
  config::TrainingArguments args = resume_arguments(out, max_steps, save_steps);
  args.run.finetuning_type = config::FinetuningType::kFreeze;
  args.freeze.layers = 1;
  return args;
}

double last_loss(const train::TrainerState& state) {
  double loss = 0;
  for (const train::MetricList& line : state.log_history)
    if (line.find("loss")) loss = *line.find("loss");
  return loss;
}

// Trained weights change, and all others keep their bits: in the export, which is a whole model.
TEST(FreezeRun, ChangesTheChosenLayersAlone) {
  for (const int pp : {1, 2}) {
    const TempFolder out;
    TrainerCase how{.name = fmt::format("pp {}", pp), .pp = pp};
    how.args = freeze_arguments(out.path(), 2, 2);
    how.args.freeze.modules = {"mlp"};
    how.args.freeze.extra = {"norm"};
    how.args.batch.gradient_accumulation_steps = pp;
    how.args.batch.micro_batch_size = 8 / pp;
    run_resumable(how, {.model = "llama", .ended = [&](train::Trainer& trainer) {
                          train::save_model(trainer.models(), trainer.settings().save, out / "end", {});
                        }});
    const hf::SafetensorsFile before(golden_folder("llama") / "model.safetensors"),
        after(out / "end" / "model.safetensors");
    ASSERT_EQ(before.tensors().size(), after.tensors().size());
    for (const auto& info : before.tensors()) {
      const bool trained = info.name.starts_with("model.layers.3.mlp.") || info.name == "model.norm.weight";
      EXPECT_EQ(at::equal(before.tensor(info.name), after.tensor(info.name)), !trained) << how.name << " " << info.name;
    }
  }
}

// Stages that train nothing, on either side of the one that does; virtual stages; sharded state.
TEST(FreezeRun, GivesTheSameLossesInEveryLayout) {
  for (const int layers : {1, -1}) {
    const auto loss = [&](TrainerCase how) {
      const TempFolder out;
      config::TrainingArguments args = freeze_arguments(out.path(), 3, 3);
      args.parallel = how.args.parallel;
      args.optimizer.use_distributed_optimizer = how.dp > 1;
      args.freeze.layers = layers;
      args.batch.gradient_accumulation_steps = how.pp > 1 ? 2 * how.pp / how.dp : 1;
      args.batch.micro_batch_size = 8 / how.dp / args.batch.gradient_accumulation_steps;
      how.args = args;
      return last_loss(run_resumable(how, {.model = "llama"}));
    };
    const double expected = loss({});
    std::vector<TrainerCase> cases{{.name = "tp 2", .tp = 2},
                                   {.name = "pp 2", .pp = 2},
                                   {.name = "pp 2 vpp 2", .pp = 2, .vpp = 2},
                                   {.name = "pp 2 dp 2", .pp = 2, .dp = 2},
                                   {.name = "cp 2", .cp = 2}};
    cases.front().args.parallel.sequence_parallel = true;
    for (const TrainerCase& how : cases)
      expect_close(loss(how), expected, fmt::format("{} layers, {}", layers, how.name));
  }
}

// Layers below the trained ones are not run twice, also where routers count in the gradient mode.
TEST(FreezeRun, RecomputationChangesNoLoss) {
  for (const char* model : {"llama", "qwen3_moe"}) {
    const auto loss = [&](std::optional<config::RecomputeGranularity> granularity) {
      const TempFolder out;
      TrainerCase how;
      how.args = freeze_arguments(out.path(), 3, 3);
      how.args.recompute.granularity = granularity;
      return last_loss(run_resumable(how, {.model = model}));
    };
    EXPECT_EQ(loss(config::RecomputeGranularity::kFull), loss(std::nullopt)) << model;
  }
}

TEST(FreezeRun, ContinuesBitForBit) {
  const TempFolder whole, rest;
  const auto run = [&](const TempFolder& out, std::optional<fs::path> checkpoint) {
    TrainerCase how{.tp = 2, .pp = 2, .dp = 2};
    how.args = freeze_arguments(out.path(), 4, 2);
    how.args.precision.bf16 = true;
    how.args.parallel.sequence_parallel = true;
    how.args.batch.micro_batch_size = 2;
    how.args.batch.gradient_accumulation_steps = 2;
    how.args.optimizer.use_distributed_optimizer = true;
    how.args.ddp.overlap_grad_reduce = how.args.ddp.overlap_param_gather = true;
    return run_resumable(how, {.model = "qwen3", .checkpoint = std::move(checkpoint)});
  };
  const auto expected = run(whole, std::nullopt), actual = run(rest, whole / "checkpoint-2");
  EXPECT_EQ(last_loss(actual), last_loss(expected));
  expect_same_tensors(rest / "checkpoint-4", whole / "checkpoint-4", /*with_rng=*/true);
}

// A checkpoint holds the whole model, and optimizer state of what is trained alone; other layouts continue from it.
TEST(FreezeRun, ContinuesInAnotherLayout) {
  const TempFolder first;
  TrainerCase one;
  one.args = freeze_arguments(first.path(), 3, 2);
  const auto expected = run_resumable(one, {.model = "qwen3"});
  const hf::SafetensorsFile state(first / "checkpoint-2" / "optimizer.safetensors");
  for (const auto& info : state.tensors())
    EXPECT_TRUE(info.name.find("layers.") != std::string::npos) << info.name << " has a state";
  for (const auto& [tp, pp, dp] : {std::array{2, 1, 1}, {1, 2, 1}, {2, 1, 2}}) {
    const TempFolder second;
    TrainerCase how{.name = fmt::format("tp {} pp {} dp {}", tp, pp, dp), .tp = tp, .pp = pp, .dp = dp};
    how.args = freeze_arguments(second.path(), 3, 1);
    how.args.batch.gradient_accumulation_steps = pp;
    how.args.batch.micro_batch_size = 8 / dp / pp;
    how.args.optimizer.use_distributed_optimizer = dp > 1;
    const auto actual = run_resumable(how, {.model = "qwen3", .checkpoint = first / "checkpoint-2"});
    expect_close(last_loss(actual), last_loss(expected), how.name);
  }
}

// Frozen weights have no gradient and no optimizer state.
TEST(FreezeRun, MemoryFollowsTheTrainedLayers) {
  int64_t gradients = 0, state = 0, trained = 0, all = 0;
  const TempFolder out;
  TrainerCase how;
  how.args = freeze_arguments(out.path(), 2, 2);
  run_resumable(how, {.model = "llama", .ended = [&](train::Trainer& trainer) {
                        for (const auto* chunk : trainer.optimized_model()->chunks())
                          for (const auto& buffer : chunk->buffers())
                            gradients += static_cast<int64_t>(buffer->grads().nbytes());
                        state = trainer.optimized_model()->optimizer().state_bytes(false);
                        for (const nn::Parameter* p : trainer.models().parameters()) {
                          all += p->value.numel();
                          if (p->value.requires_grad()) trained += p->value.numel();
                        }
                      }});
  EXPECT_LT(trained, all / 3);
  EXPECT_NEAR(static_cast<double>(gradients), 4.0 * static_cast<double>(trained),
              0.02 * 4.0 * static_cast<double>(trained));
  EXPECT_NEAR(static_cast<double>(state), 8.0 * static_cast<double>(trained),
              0.02 * 8.0 * static_cast<double>(trained));
}

}  // namespace
}  // namespace megalith::testing
