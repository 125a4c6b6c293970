// Runs that train an adapter: their files, how they continue, and their cost.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>

#include "megalith/checkpoint/manifest.h"
#include "megalith/config/derive.h"
#include "megalith/hf/safetensors_file.h"
#include "megalith/model/adapter.h"
#include "megalith/run/resolve/schedule.h"
#include "megalith/run/resolve/trainer_settings.h"
#include "megalith/train/saving/save_model.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/golden_adapter.h"
#include "tests/support/memory_meter.h"
#include "tests/support/temp_folder.h"
#include "tests/train/resume_case.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

config::TrainingArguments lora_arguments(const fs::path& out, int64_t max_steps, int64_t save_steps) {
  config::TrainingArguments args = resume_arguments(out, max_steps, save_steps);
  args.run.finetuning_type = config::FinetuningType::kLora;
  args.lora.rank = 4;
  args.lora.additional_target = {"embed_tokens", "lm_head"};
  return args;
}

double logged_loss_at(const train::TrainerState& state, double step) {
  for (const train::MetricList& line : state.log_history)
    if (line.find("step") == step && line.find("loss")) return *line.find("loss");
  ADD_FAILURE() << "no loss of step " << step;
  return 0;
}

// Dropout, shards that are gathered late, stages, a base of 16 bits below an adapter of 32.
TEST(LoraRun, ContinuesBitForBit) {
  for (const bool bf16 : {false, true}) {
    const TempFolder whole, rest;
    const auto run = [&](const TempFolder& out, std::optional<fs::path> checkpoint) {
      TrainerCase how{.tp = 2, .pp = 2, .dp = 2};
      how.args = lora_arguments(out.path(), 4, 2);
      how.args.lora.dropout = 0.1;
      how.args.precision.bf16 = bf16;
      how.args.parallel.sequence_parallel = true;
      how.args.batch.micro_batch_size = 2;
      how.args.batch.gradient_accumulation_steps = 2;
      how.args.optimizer.use_distributed_optimizer = true;
      how.args.ddp.overlap_grad_reduce = how.args.ddp.overlap_param_gather = true;
      return run_resumable(how, {.model = "qwen3", .checkpoint = std::move(checkpoint)});
    };
    const auto expected = run(whole, std::nullopt), actual = run(rest, whole / "checkpoint-2");
    EXPECT_EQ(logged_loss_at(actual, 4), logged_loss_at(expected, 4));
    expect_same_tensors(rest / "checkpoint-4", whole / "checkpoint-4", /*with_rng=*/true);
    EXPECT_EQ(checkpoint::read_manifest(whole / "checkpoint-4").holds,
              (std::vector<std::string>{"adapter_model", "optimizer", "rng"}));
    EXPECT_FALSE(fs::exists(whole / "checkpoint-4" / "model.safetensors"));
  }
}

// One layout saves, another continues.
TEST(LoraRun, ContinuesInAnotherLayout) {
  const TempFolder first;
  TrainerCase one{.name = "one rank"};
  one.args = lora_arguments(first.path(), 3, 2);
  const auto expected = run_resumable(one, {.model = "qwen3"});
  for (const auto& [tp, pp, dp] : {std::array{2, 1, 1}, {1, 2, 1}, {2, 1, 2}}) {
    const TempFolder second;
    TrainerCase how{.name = fmt::format("tp {} pp {} dp {}", tp, pp, dp), .tp = tp, .pp = pp, .dp = dp};
    how.args = lora_arguments(second.path(), 3, 1);
    how.args.batch.gradient_accumulation_steps = pp;
    how.args.batch.micro_batch_size = 8 / dp / pp;
    how.args.optimizer.use_distributed_optimizer = dp > 1;
    const auto actual = run_resumable(how, {.model = "qwen3", .checkpoint = first / "checkpoint-2"});
    expect_close(logged_loss_at(actual, 3), logged_loss_at(expected, 3), how.name);
  }
}

TEST(LoraRun, ZeroBubbleGivesTheSameLosses) {
  const auto losses = [](bool zero_bubble) {
    const TempFolder out;
    TrainerCase how{.pp = 2};
    how.args = lora_arguments(out.path(), 3, 3);
    how.args.batch.gradient_accumulation_steps = 4;
    how.args.batch.micro_batch_size = 2;
    if (zero_bubble) how.args.pipeline.schedule = layout::ScheduleKind::kZeroBubble;
    return logged_loss_at(run_resumable(how, {.model = "llama"}), 3);
  };
  expect_close(losses(true), losses(false), "the last loss", 1e-6);
}

// Gradients and optimizer state follow the adapter's size.
TEST(LoraRun, MemoryFollowsTheAdapter) {
  struct Cost {
    int64_t gradients = 0, state = 0, trained = 0, all = 0;
  };
  const auto cost = [](config::FinetuningType type) {
    const TempFolder out;
    TrainerCase how;
    how.args = lora_arguments(out.path(), 2, 2);
    how.args.lora.additional_target.clear();
    how.args.run.finetuning_type = type;
    how.args.precision.bf16 = true;
    Cost found;
    run_resumable(how, {.model = "llama", .ended = [&](train::Trainer& trainer) {
                          for (const auto* chunk : trainer.optimized_model()->chunks())
                            for (const auto& buffer : chunk->buffers())
                              found.gradients += static_cast<int64_t>(buffer->grads().nbytes());
                          found.state = trainer.optimized_model()->optimizer().state_bytes(false);
                          for (const nn::Parameter* p : trainer.models().parameters()) {
                            found.all += p->value.numel();
                            if (p->value.requires_grad()) found.trained += p->value.numel();
                          }
                        }});
    return found;
  };
  const Cost lora = cost(config::FinetuningType::kLora), full = cost(config::FinetuningType::kFull);
  EXPECT_EQ(full.trained, full.all);
  EXPECT_LT(lora.trained, full.trained / 5);
  // Buffers are padded to multiples of 64 elements per parameter.
  EXPECT_NEAR(static_cast<double>(lora.gradients), 4.0 * static_cast<double>(lora.trained),
              0.02 * 4.0 * static_cast<double>(lora.trained));
  EXPECT_NEAR(static_cast<double>(lora.state), 8.0 * static_cast<double>(lora.trained),
              0.02 * 8.0 * static_cast<double>(lora.trained));
  EXPECT_NEAR(static_cast<double>(full.state), 12.0 * static_cast<double>(full.trained),
              0.02 * 12.0 * static_cast<double>(full.trained));
}

// Only a fraction of a full run's memory is taken for training, as the allocator sees it.
TEST(LoraRun, AllocatorSeesIt) {
  const auto taken = [](config::FinetuningType type) {
    int64_t bytes = 0;
    TrainerCase how;
    how.args.run.finetuning_type = type;
    run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
      const MemoryMeter meter;
      const train::OptimizedModel model(
          r.models, run::update_settings(r.args),
          run::make_schedule(r.args, layout::MicrobatchCalculator(config::batch_plan(r.args, 1)), 4),
          r.models.context());
      bytes = meter.current();
    });
    return bytes;
  };
  EXPECT_LT(taken(config::FinetuningType::kLora), taken(config::FinetuningType::kFull) / 3);
}

TEST(LoraRun, SavesTheAdapterOrTheMergedModel) {
  for (const bool merged : {false, true}) {
    const TempFolder out;
    TrainerCase how{.tp = 2};
    how.args = lora_arguments(out.path(), 2, 2);
    how.args.lora.additional_target.clear();
    how.args.save.merged_model = merged;
    at::Tensor trained;
    run_resumable(how, {.model = "llama", .ended = [&](train::Trainer& trainer) {
                          const at::NoGradGuard no_grad;
                          trainer.save_model(out.path());
                          const at::Tensor ids = at::arange(8, at::kLong);
                          const at::Tensor logits = trainer.models()[0].forward(
                              {.layout = ops::SequenceLayout::dense(1, 8), .ids = ids, .training = false});
                          if (trainer.state().is_world_process_zero) trained = logits;
                        }});
    EXPECT_EQ(fs::exists(out / "config.json"), merged);
    EXPECT_EQ(fs::exists(out / "adapter_config.json"), !merged);
    EXPECT_TRUE(fs::exists(out.path() / (merged ? "adapter/adapter_model.safetensors" : "adapter_model.safetensors")));
    run_ranks(2, [&](const Rank& r) {
      parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 2, .tp = 2}));
      config::TrainingArguments args = how.effective();
      args.run.finetuning_type = merged ? config::FinetuningType::kFull : config::FinetuningType::kLora;
      if (!merged) args.lora.adapter_name_or_path = {out.path().string()};
      const auto models = model_for(merged ? out.path() : golden_folder("llama"), args, context);
      const at::NoGradGuard no_grad;
      const at::Tensor logits = models[0].forward(
          {.layout = ops::SequenceLayout::dense(1, 8), .ids = at::arange(8, at::kLong), .training = false});
      if (r.rank != 0) return;
      expect_close(logits, trained, "logits of what was saved", merged ? 1e-4 : 1e-6);
    });
  }
}

TEST(LoraRun, TheBestAdapterComesBack) {
  const TempFolder out;
  TrainerCase how;
  how.args = lora_arguments(out.path(), 3, 1);
  how.args.eval.strategy = config::Interval::kSteps;
  how.args.eval.steps = 1;
  how.args.eval.load_best_model_at_end = true;
  how.args.eval.metric_for_best_model = "loss";
  how.args.optimizer.learning_rate = 0.3;  // too much: it gets worse
  fs::path chosen;
  run_resumable(how, {.model = "qwen3", .ended = [&](train::Trainer& trainer) {
                        chosen = trainer.state().best_model_checkpoint.value_or("none");
                        train::save_model(trainer.models(), trainer.settings().save, out / "end", {});
                      }});
  EXPECT_NE(chosen, out / "checkpoint-3");
  const hf::SafetensorsFile best(chosen / "adapter_model.safetensors"), end(out / "end" / "adapter_model.safetensors");
  for (const auto& info : best.tensors()) expect_identical(end.tensor(info.name), best.tensor(info.name), info.name);
}

TEST(LoraRun, AModelWithoutAnAdapterIsRefused) {
  TrainerCase how;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    config::TrainingArguments args = r.args;
    args.run.finetuning_type = config::FinetuningType::kLora;
    const auto data = dataset_of(random_sequences(8, 50));
    train::Trainer trainer(r.models, run::trainer_settings(args, r.models.context().grid().shape()), r.setup(data));
    try {
      trainer.train();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const ConfigError& error) {
      expect_contains(error.what(), "the model has no adapter");
    }
  });
}

}  // namespace
}  // namespace megalith::testing
