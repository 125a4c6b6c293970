// Options about saving: the saved parts, the kept checkpoints, and the parts that a run takes over from one.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/checkpoint/manifest.h"
#include "megalith/checkpoint/verify.h"
#include "megalith/config/derive.h"
#include "megalith/run/pretrain.h"
#include "megalith/run/resolve/load.h"
#include "megalith/run/resolve/run_settings.h"
#include "tests/effects/effect.h"
#include "tests/support/temp_folder.h"
#include "tests/train/resume_case.h"

namespace megalith::testing {
namespace {

using config::Dialect;
using config::TrainingArguments;
namespace fs = std::filesystem;

std::string folders_in(const fs::path& run) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(run)) {
    std::string name = entry.path().filename().string();
    if (checkpoint::has_manifest(entry.path())) {
      const checkpoint::Manifest manifest = checkpoint::read_manifest(entry.path());
      name += fmt::format(" ({}, {})", fmt::join(manifest.holds, " "), manifest.version == 1 ? "shared" : "pieces");
    }
    names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  return fmt::format("{}", fmt::join(names, "\n"));
}

// Returns what a run of four steps leaves on disk and the order of its events: a save in the background is reported
// after the next step has begun.
std::string saves(const TrainingArguments& args) {
  const TempFolder out;
  TrainerCase how;
  how.args = args;
  how.args.save.output_dir = out.path().string();
  Recorder::Heard heard;
  run_resumable(how, {.change = [&](const TrainerRank&, train::TrainerSetup& setup) {
                  setup.callbacks.push_back(std::make_unique<Recorder>(heard));
                }});
  return fmt::format("{}\n{}", folders_in(out.path()), fmt::join(heard.events, " "));
}

// One step behind a checkpoint of another run.
std::string position(const TrainingArguments& args) {
  static const TempFolder saved;
  TrainerCase how;
  how.args = args;
  how.args.save.output_dir = saved.path().string();
  if (!fs::exists(saved / "checkpoint-3")) {
    config::TrainingArguments first = how.args;
    first.sampler.ignore_data_skip = false;
    run_resumable({.args = first}, {});
  }
  std::string text;
  how.args.save.strategy = config::Interval::kNo;
  run_resumable(how, {.checkpoint = saved / "checkpoint-3", .ended = [&](train::Trainer& trainer) {
                        text = fmt::format("{} of epoch {}", trainer.data_position().position.consumed,
                                           trainer.data_position().position.epoch);
                      }});
  return text;
}

std::string resumed(const TrainingArguments& args) {
  const TempFolder run;
  try {
    checkpoint::find_checkpoint(args.save.resume_from_checkpoint.value_or("false"), run.path());
    return "afresh";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

// A pre-training run that begins with the one of `first`, which is made once.
std::string pretrained(const TrainingArguments& args, bool resumes) {
  static const TempFolder saved_in_fp32, saved_in_bf16;
  const TempFolder& saved = args.precision.bf16 ? saved_in_bf16 : saved_in_fp32;
  const auto run = [](TrainingArguments mine) {
    std::string text;
    run_ranks(1, [&](const Rank& rank) {
      const auto context = run::initialize_megatron(mine, {.allow_no_cuda = true, .world = &rank.world});
      try {
        const run::PretrainOutput output = run::pretrain(*context);
        text = fmt::format("{} steps", output.state.global_step);
        for (const train::MetricList& line : output.state.log_history)
          text += fmt::format(" {:.9g}", line.find("loss").value_or(0));
      } catch (const Error& error) {
        text = error.what();
      }
    });
    return text;
  };
  TrainingArguments mine = args;
  const TempFolder out;
  if (!resumes) {
    mine.save.output_dir = out.path().string();
    run(mine);
    return folders_in(out.path());
  }
  if (!fs::exists(saved / "checkpoint-4")) {
    TrainingArguments first = args;
    first.checkpoint = {};
    first.save.output_dir = saved.path().string();
    first.save.steps = 2;
    run(first);
  }
  if (mine.checkpoint.pretrained_checkpoint)
    mine.checkpoint.pretrained_checkpoint = saved.path().string();
  else
    mine.save.load = mine.save.load.value_or(saved.path().string());
  mine.save.output_dir.reset();
  mine.run.max_steps = 6;
  return run(mine);
}

// A run with a head of its own that loads a checkpoint with tied embeddings.
std::string loads_without_head(const TrainingArguments& args) {
  const TempFolder saved;
  std::string text;
  run_ranks(1, [&](const Rank& rank) {
    TrainingArguments mine = args;
    mine.save.output_dir = saved.path().string();
    run::pretrain(*run::initialize_megatron(mine, {.allow_no_cuda = true, .world = &rank.world}));
    mine.shape.untie_embeddings = true;
    mine.save.load = std::exchange(mine.save.output_dir, std::nullopt);
    mine.run.max_steps = 5;
    const auto context = run::initialize_megatron(mine, {.allow_no_cuda = true, .world = &rank.world});
    try {
      text = fmt::format("{} steps", run::pretrain(*context).state.global_step);
    } catch (const DataError& error) {
      text = std::string(error.what()).find("lm_head.weight") == std::string::npos ? error.what() : "lacks the head";
    }
  });
  return text;
}

// Returns the checkpoints that a run leaves in its folder, in the non-persistent one and in one beside it, and the one
// that it would continue from.
std::string rolls(const TrainingArguments& args) {
  const TempFolder out, beside;
  TrainingArguments mine = args;
  mine.save.output_dir = out.path().string();
  if (mine.checkpoint.non_persistent_dir) mine.checkpoint.non_persistent_dir = beside.path().string();
  run_ranks(1, [&](const Rank& rank) {
    run::pretrain(*run::initialize_megatron(mine, {.allow_no_cuda = true, .world = &rank.world}));
  });
  std::string text = folders_in(out.path()) + "; " + folders_in(beside.path());
  if (const fs::path inside = out / "non_persistent"; fs::exists(inside)) text += "; " + folders_in(inside);
  mine.save.load = mine.save.output_dir;
  return text + "; " + run::find_load(run::load_settings(mine)).folder.value_or("none").filename().string();
}

const TempFolder& checkpoints_of_tiny() {
  static const TempFolder saved;
  return saved;
}

// The checkpoint that a pre-training run continues from.
std::string begins_with(const TrainingArguments& args) {
  const TempFolder& saved = checkpoints_of_tiny();
  TrainingArguments first = args;
  first.checkpoint = {};
  first.save.output_dir = saved.path().string();
  if (fs::is_empty(saved.path()))
    run_ranks(1, [&](const Rank& rank) {
      const auto context = run::initialize_megatron(first, {.allow_no_cuda = true, .world = &rank.world});
      run::pretrain(*context);
    });
  TrainingArguments mine = args;
  mine.save.load = saved.path().string();
  return run::find_load(run::load_settings(mine)).folder.value_or("none").filename();
}

// Layers of a run that continues from a checkpoint of tiny ones, told to have another number of them.
std::string takes_model(const TrainingArguments& args) {
  begins_with(args);
  config::ParseResult parsed{.args = args, .report = {}, .notes = {}};
  parsed.args.save.load = checkpoints_of_tiny().path().string();
  parsed.args.shape.num_layers = 4;
  run::take_checkpoint_arguments(parsed);
  return fmt::format("{} layers", *parsed.args.shape.num_layers);
}

std::string leaves(const TrainingArguments& args) { return pretrained(args, false); }
std::string continues(const TrainingArguments& args) { return pretrained(args, true); }

}  // namespace

Effects checkpoint_effects() {
  const Words small{"--finetuning_type=full", "--max_steps=4",  "--per_device_train_batch_size=8",
                    "--learning_rate=1e-3",   "--save_steps=1", "--logging_steps=1"};
  const Words tiny{"--num_layers=2",
                   "--hidden_size=16",
                   "--num_attention_heads=2",
                   "--seq_length=256",
                   "--vocab_size=30",
                   "--train_iters=4",
                   "--max_position_embeddings=256",
                   "--lr=1e-3",
                   "--mock_data",
                   "--eval_iters=0",
                   "--tokenizer_type=NullTokenizer",
                   "--use_cpu",
                   "--micro_batch_size=2",
                   "--save_interval=1",
                   "--lr_decay_style=constant",
                   "--log_interval=1",
                   "--save=somewhere",
                   "--lr_decay_iters=9",
                   "--hidden_dropout=0.2"};
  const auto tiny_and = [&](const char* word) {
    Words words = tiny;
    words.emplace_back(word);
    return words;
  };
  const auto kPretrain = Dialect::kPretrain;
  Words seldom = tiny;  // saves at the second of four steps only
  std::ranges::replace(seldom, "--save_interval=1", "--save_interval=2");
  std::ranges::replace(seldom, "--train_iters=4", "--train_iters=3");
  const auto seldom_and = [&](const Words& words) {
    Words all = seldom;
    all.insert(all.end(), words.begin(), words.end());
    return all;
  };
  const Words global{"--non_persistent_ckpt_type=global"};
  const Words each_step = seldom_and({"--non_persistent_ckpt_type=global", "--non_persistent_save_interval=1"});
  const Words longer = tiny_and("--override_opt_param_scheduler");  // the run that continues is longer
  Words without_moments = longer;
  without_moments.insert(without_moments.end(), {"--bf16", "--no_load_optim"});
  return {
      {"save_total_limit", small, {}, {"--save_total_limit=2"}, saves},
      {"save_only_model", small, {}, {"--save_only_model"}, saves},
      {"async_save", small, {}, {"--async_save"}, saves},
      {"checkpoint_files", small, {}, {"--checkpoint_files=per_writer"}, saves},
      {"ignore_data_skip", small, {}, {"--ignore_data_skip"}, position},
      {"resume_from_checkpoint", {}, {}, {"--resume_from_checkpoint=nowhere"}, resumed},
      {"save_retain_interval", tiny, {}, {"--save_retain_interval=2"}, leaves, kPretrain},
      {"non_persistent_save_interval", seldom_and(global), {}, {"--non_persistent_save_interval=1"}, rolls, kPretrain},
      {"non_persistent_ckpt_type", seldom, {}, {global[0], "--non_persistent_save_interval=1"}, rolls, kPretrain},
      {"non_persistent_global_ckpt_dir", each_step, {}, {"--non_persistent_global_ckpt_dir=x"}, rolls, kPretrain},
      {"no_save_optim", tiny, {}, {"--no_save_optim"}, leaves, kPretrain},
      {"no_save_rng", tiny, {}, {"--no_save_rng"}, leaves, kPretrain},
      {"override_opt_param_scheduler", tiny, {}, {"--override_opt_param_scheduler"}, continues, kPretrain},
      {"use_checkpoint_opt_param_scheduler", tiny, {}, {"--use_checkpoint_opt_param_scheduler"}, continues, kPretrain},
      {"no_load_optim", longer, {}, {"--no_load_optim"}, continues, kPretrain},
      {"load_main_params_from_ckpt", without_moments, {}, {"--load_main_params_from_ckpt"}, continues, kPretrain},
      {"dist_ckpt_strictness", longer, {}, {"--dist_ckpt_strictness=log_unexpected"}, loads_without_head, kPretrain},
      {"no_load_rng", longer, {}, {"--no_load_rng"}, continues, kPretrain},
      {"finetune", longer, {}, {"--finetune"}, continues, kPretrain},
      {"ckpt_step", tiny, {}, {"--ckpt_step=2"}, begins_with, kPretrain},
      {"use_checkpoint_args", tiny, {}, {"--use_checkpoint_args"}, takes_model, kPretrain},
      {"override_ckpt_iteration", longer, {}, {"--override_ckpt_iteration=1"}, continues, kPretrain},
      {"pretrained_checkpoint", longer, {}, {"--pretrained_checkpoint=there"}, continues, kPretrain},
  };
}

}  // namespace megalith::testing
