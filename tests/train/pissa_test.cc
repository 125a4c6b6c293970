// Runs whose adapter starts as the principal parts of the weights: peft's steps, in every layout; checkpoints; exports.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>

#include "megalith/checkpoint/manifest.h"
#include "megalith/hf/safetensors_file.h"
#include "megalith/peft/adapter_config.h"
#include "megalith/run/resolve/adapter_source.h"
#include "tests/support/close.h"
#include "tests/support/golden_model.h"
#include "tests/support/temp_folder.h"
#include "tests/train/golden_steps.h"
#include "tests/train/resume_case.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

config::TrainingArguments pissa_arguments(config::TrainingArguments args) {
  args.run.finetuning_type = config::FinetuningType::kLora;
  args.lora.rank = 4;
  args.lora.alpha = 8;
  args.lora.pissa_init = true;
  args.lora.pissa_iter = -1;
  return args;
}

nlohmann::json golden_steps(const std::string& name) {
  std::ifstream file(fs::path("tests/data/pissa") / name / "golden.json");
  return nlohmann::json::parse(file).at("train");
}

TEST(PissaRun, StepsOfPeftInEveryLayout) {
  for (const char* name : {"llama", "gpt2"}) {
    const hf::SafetensorsFile batch(golden_folder(name) / "golden.safetensors");
    for (const auto& [tp, pp, dp] : {std::array{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 2, 1}}) {
      TrainerCase how{.name = fmt::format("{} tp {} pp {} dp {}", name, tp, pp, dp), .tp = tp, .pp = pp, .dp = dp};
      how.args = pissa_arguments(how.args);
      how.args.parallel.sequence_parallel = tp > 1;
      how.args.batch.gradient_accumulation_steps = pp;
      how.args.optimizer.use_distributed_optimizer = dp > 1;
      if (std::string_view(name) == "gpt2") {
        how.args.lora.rank = 3;
        how.args.lora.alpha = 5;
        how.args.lora.use_rslora = true;
        how.args.lora.target = {"c_attn", "c_fc", "mlp.c_proj"};
      }
      expect_golden_steps(golden_folder(name), batch.tensor("input_ids"), batch.tensor("labels"), golden_steps(name),
                          how);
    }
  }
}

config::TrainingArguments resumable(const fs::path& out) {
  config::TrainingArguments args = pissa_arguments(resume_arguments(out, 4, 2));
  args.lora.pissa_iter = 3;
  args.lora.additional_target = {"norm"};
  return args;
}

// Magnitudes start as the norms of the whole weights.
TEST(PissaRun, ContinuesBitForBit) {
  for (const bool bf16 : {false, true}) {
    const TempFolder whole, rest;
    const auto run = [&](const TempFolder& out, std::optional<fs::path> checkpoint) {
      TrainerCase how{.tp = 2, .pp = 2};
      how.args = resumable(out.path());
      how.args.lora.use_dora = !bf16;
      how.args.lora.use_rslora = bf16;
      how.args.precision.bf16 = bf16;
      how.args.batch.gradient_accumulation_steps = 2;
      how.args.batch.micro_batch_size = 4;
      return run_resumable(how, {.model = "llama", .checkpoint = std::move(checkpoint)});
    };
    run(whole, std::nullopt);
    run(rest, whole / "checkpoint-2");
    expect_same_tensors(rest / "checkpoint-4", whole / "checkpoint-4", /*with_rng=*/true);
    EXPECT_EQ(checkpoint::read_manifest(whole / "checkpoint-4").holds,
              (std::vector<std::string>{"adapter_model", "adapter_init", "optimizer", "rng"}));
    const hf::SafetensorsFile first(whole / "checkpoint-2" / "adapter_init.safetensors"),
        last(rest / "checkpoint-4" / "adapter_init.safetensors");
    for (const hf::TensorInfo& info : first.tensors())
      expect_identical(last.tensor(info.name), first.tensor(info.name), info.name);
  }
}

TEST(PissaRun, ContinuesInAnotherLayout) {
  const TempFolder first;
  TrainerCase one{.name = "one rank"};
  one.args = resumable(first.path());
  const auto last_loss = [](const train::TrainerState& state) {
    double loss = 0;
    for (const train::MetricList& line : state.log_history)
      if (line.find("loss")) loss = *line.find("loss");
    return loss;
  };
  const double expected = last_loss(run_resumable(one, {.model = "qwen3"}));
  for (const auto& [tp, pp, dp] : {std::array{2, 1, 1}, {1, 2, 1}, {2, 1, 2}}) {
    const TempFolder second;
    TrainerCase how{.name = fmt::format("tp {} pp {} dp {}", tp, pp, dp), .tp = tp, .pp = pp, .dp = dp};
    how.args = resumable(second.path());
    how.args.batch.gradient_accumulation_steps = pp;
    how.args.batch.micro_batch_size = 8 / dp / pp;
    const double actual = last_loss(run_resumable(how, {.model = "qwen3", .checkpoint = first / "checkpoint-2"}));
    expect_close(actual, expected, how.name);
  }
}

// The exported adapter works without the run: relative to the residual, and joined with the start.
TEST(PissaRun, WritesWhatItTrained) {
  for (const bool converts : {false, true})
    for (const bool dora : {false, true}) {
      SCOPED_TRACE(fmt::format("pissa_convert {} use_dora {}", converts, dora));
      const TempFolder out;
      TrainerCase how{.tp = 2};
      how.args = resumable(out.path());
      how.args.lora.pissa_convert = converts;
      how.args.lora.use_dora = dora;
      const auto logits = [](const model::VirtualModels& models) {
        const at::NoGradGuard no_grad;
        return models[0].forward(
            {.layout = ops::SequenceLayout::dense(1, 8), .ids = at::arange(8, at::kLong), .training = false});
      };
      at::Tensor trained;
      run_resumable(how, {.model = "llama", .ended = [&](train::Trainer& trainer) {
                            trainer.save_model(out.path());
                            const at::Tensor here = logits(trainer.models());
                            if (trainer.state().is_world_process_zero) trained = here;
                          }});
      const peft::AdapterConfig written = peft::read_adapter_config(out.path());
      EXPECT_EQ(written.rank, converts ? 8 : 4);
      EXPECT_EQ(written.pissa.has_value(), !converts);
      EXPECT_EQ(fs::exists(out / "adapter_init.safetensors"), !converts);
      run_ranks(2, [&](const Rank& r) {
        parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 2, .tp = 2}));
        config::TrainingArguments args = how.effective();
        args.lora.pissa_init = args.lora.pissa_convert = false;
        args.lora.adapter_name_or_path = {out.path().string()};
        const at::Tensor here = logits(model_for(golden_folder("llama"), args, context));
        if (r.rank == 0) expect_close(here, trained, "logits", 1e-5);
      });
    }
}

}  // namespace
}  // namespace megalith::testing
