// Options of adapters.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "megalith/hf/safetensors_file.h"
#include "megalith/model/adapter.h"
#include "megalith/run/resolve/adapter_source.h"
#include "tests/effects/effect.h"
#include "tests/support/golden_adapter.h"
#include "tests/support/temp_folder.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

using config::TrainingArguments;
namespace fs = std::filesystem;

// The adapters of a run lie in the golden folder.
TrainingArguments with_golden_paths(TrainingArguments args) {
  if (args.lora.adapter_folder) args.lora.adapter_folder = (golden_dir() / "hf" / *args.lora.adapter_folder).string();
  if (!args.lora.adapter_folder)
    for (std::string& path : args.lora.adapter_name_or_path) path = (golden_dir() / "hf" / path).string();
  return args;
}

// The adapter of a model and what the model says with it.
std::string adapter(const TrainingArguments& given) {
  TrainerCase how;
  how.args = with_golden_paths(given);
  std::string text;
  try {
    run::adapter_source(how.args);  // problems are reported here, not on a rank
  } catch (const std::exception& error) {
    return error.what();
  }
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    const peft::AdapterConfig& config = model::adapter_of(r.models);
    const at::NoGradGuard no_grad;
    const at::Tensor logits = r.models[0].forward(
        {.layout = ops::SequenceLayout::dense(1, 8), .ids = at::arange(8, at::kLong), .training = false});
    text = fmt::format("rank {} scale {} dropout {} on {} saving {}: {}", config.rank, config.scale(), config.dropout,
                       fmt::join(config.target_modules, " "), fmt::join(config.modules_to_save, " "),
                       logits.sum().item<double>());
  });
  return text;
}

// Losses of a few steps.
std::string losses(const TrainingArguments& args) {
  TrainerCase how;
  how.args = args;
  const auto rows = random_sequences(16, 50, 1);
  std::string text;
  for (const double loss : run_training(golden_folder("llama"), how, rows, rows).numbers("loss"))
    text += fmt::format(" {}", loss);
  return text;
}

std::string written(const TrainingArguments& args) {
  const TempFolder out;
  TrainerCase how;
  how.args = args;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    train::Trainer trainer(r.models, r.settings(), {});
    trainer.save_model(out.path());
  });
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(out.path())) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return fmt::format("{}", fmt::join(names, " "));
}

Words small_lora(const Words& more = {}) {
  Words words{"--finetuning_type=lora", "--max_steps=3",      "--per_device_train_batch_size=2", "--logging_steps=1",
              "--learning_rate=1e-2",   "--save_strategy=no", "--lr_scheduler_type=constant"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words small_freeze() {
  Words words = small_lora();
  words.front() = "--finetuning_type=freeze";
  return words;
}

}  // namespace

Effects lora_effects() {
  const Words r8{"--adapter_name_or_path=lora/llama_r8"};
  const Words both = small_lora({"--adapter_name_or_path=lora/llama_rslora,lora/llama_r8"});
  return {
      {"lora_rank", small_lora(), {}, {"--lora_rank=2"}, adapter},
      {"lora_alpha", small_lora(), {}, {"--lora_alpha=5"}, adapter},
      {"lora_dropout", small_lora(), {}, {"--lora_dropout=0.5"}, losses},
      {"lora_target", small_lora(), {}, {"--lora_target=q_proj,v_proj"}, adapter},
      {"additional_target", small_lora(), {}, {"--additional_target=embed_tokens"}, losses},
      {"use_rslora", small_lora(), {}, {"--use_rslora"}, adapter},
      {"use_dora", small_lora(), {}, {"--use_dora"}, losses},
      {"pissa_init", small_lora(), {}, {"--pissa_init"}, losses},
      {"pissa_iter", small_lora({"--pissa_init"}), {"--pissa_iter=0"}, {"--pissa_iter=-1"}, losses},
      {"pissa_convert", small_lora({"--pissa_init"}), {}, {"--pissa_convert"}, written},
      {"create_new_adapter", both, {}, {"--create_new_adapter"}, adapter},
      {"adapter_name_or_path", small_lora(), {}, r8, adapter},
      {"adapter_folder", small_lora({"--adapter_name_or_path=llama_r8"}), {}, {"--adapter_folder=lora"}, adapter},
      {"loraplus_lr_ratio", small_lora(), {}, {"--loraplus_lr_ratio=16"}, losses},
      {"loraplus_lr_embedding",
       small_lora({"--loraplus_lr_ratio=16", "--lora_target=embed_tokens"}),
       {},
       {"--loraplus_lr_embedding=0.1"},
       losses},
      {"quantization_bit", small_lora(), {}, {"--quantization_bit=4"}, losses},
      {"quantization_type",
       small_lora({"--quantization_bit=4"}),
       {"--quantization_type=nf4"},
       {"--quantization_type=fp4"},
       losses},
      {"double_quantization",
       small_lora({"--quantization_bit=4"}),
       {"--double_quantization=true"},
       {"--double_quantization=false"},
       losses},
      {"freeze_trainable_layers", small_freeze(), {}, {"--freeze_trainable_layers=-1"}, losses},
      {"freeze_trainable_modules", small_freeze(), {}, {"--freeze_trainable_modules=mlp"}, losses},
      {"freeze_extra_modules", small_freeze(), {}, {"--freeze_extra_modules=norm,lm_head"}, losses},
      {"use_llama_pro", small_freeze(), {}, {"--use_llama_pro"}, losses},
      {"save_merged_model", small_lora(), {}, {"--save_merged_model"}, written},
  };
}

}  // namespace megalith::testing
