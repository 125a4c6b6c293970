// Options of the run as a whole: what is done, and when it ends.
#include "megalith/config/option_list_internal.h"

namespace megalith::config {

void add_run_options(OptionList& list) {
  list.topic("Run");
  auto run = list.part(&TrainingArguments::run);
  // Data and weights that are trained. `pretrain` always trains all weights on plain text.
  run.add("stage", &RunConfig::stage,
          "what is trained: pt (text), sft (conversations), dpo (preferences), kto (answers with verdicts), rm (reward "
          "models), cls (labels of texts)")
      .refuse({"ppo"}, "PPO is not part of Megalith; use pt, sft, dpo, kto, rm or cls")
      .pretrain_default(Stage::kPretrain)
      .train_only();
  run.add("finetuning_type", &RunConfig::finetuning_type,
          "lora: train adapters; freeze: train some layers; full: train every weight")
      .refuse({"oft"}, "OFT is not part of Megalith; use lora, freeze or full")
      .pretrain_default(FinetuningType::kFull)
      .train_only();
  // Hugging Face asks for training and evaluation one by one; Megatron trains unless told to skip it.
  run.add("do_train", &RunConfig::do_train, "train; also when neither do_train nor do_eval is given").train_only();
  run.add("do_eval", &RunConfig::do_eval, "evaluate; alone: evaluate once and end").train_only();
  run.add("skip_train", &RunConfig::skip_train, "do not train, only evaluate").pretrain_only();
  // The length of the run: epochs, steps or samples. A positive number of steps wins over epochs.
  run.add("num_train_epochs", &RunConfig::num_train_epochs, "passes over the data, unless max_steps is set")
      .at_least(0)
      .train_only();
  run.add("max_steps", &RunConfig::max_steps, "optimizer steps; a positive value wins over num_train_epochs")
      .alias({"train_iters"})
      .at_least(-1);
  run.add("train_samples", &RunConfig::train_samples, "length of the run in samples, in place of train_iters")
      .at_least(1)
      .pretrain_only();
  run.add("iterations_to_skip", &RunConfig::iterations_to_skip, "1-based iterations whose data is consumed unused")
      .pretrain_only();
  // Early ends: a multiple of steps, minutes of wall time (before a job's limit), or no better metric.
  run.add("exit_interval", &RunConfig::exit_interval, "leave when the iteration is a multiple of this")
      .at_least(1)
      .pretrain_only();
  run.add("exit_duration_in_mins", &RunConfig::exit_duration_mins, "save and leave after this many minutes")
      .at_least(0)
      .pretrain_only();
  run.add("exit_signal_handler", &RunConfig::exit_signal_handler, "SIGTERM: save and leave")
      .pretrain_only()
      .no_effect("SIGTERM always lets a run finish its step, save and leave");
  run.add("early_stopping_steps", &RunConfig::early_stopping_steps,
          "stop after this many evaluations without a better metric; needs metric_for_best_model and evaluation")
      .at_least(1)
      .train_only();

  list.no_effect("use_mca", flag(true), "Megalith has one path, the one that use_mca selects")
      .refuse({"false"}, "use_mca=false asks for LLaMA-Factory's plain PyTorch path, which Megalith does not have")
      .train_only();
  list.refused("do_predict", flag(false), "generation is not part of training; use `megalith generate`").train_only();
}

}  // namespace megalith::config
