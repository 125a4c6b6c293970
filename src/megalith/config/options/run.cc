#include "megalith/config/option_list_internal.h"

namespace megalith::config {

namespace {

void add_generation_and_compilation(OptionList& list) {
  list.refused("do_predict", flag(), "generation is not part of training; use `megalith generate`").train_only();
  list.refused_all("generation is not part of training; use `megalith generate`",
                   {{"predict_with_generate", flag()},
                    {"generation_max_length", opt_integer()},
                    {"generation_num_beams", opt_integer()},
                    {"generation_config", opt_text()},
                    {"sortish_sampler", flag()},
                    {"eval_num_beams", opt_integer()}});
  list.no_effect_all("generation settings; training does not generate", {{"do_sample", flag(true)},
                                                                         {"temperature", number(0.95)},
                                                                         {"top_p", number(0.7)},
                                                                         {"top_k", integer(50)},
                                                                         {"num_beams", integer(1)},
                                                                         {"max_length", integer(1024)},
                                                                         {"max_new_tokens", integer(1024)},
                                                                         {"repetition_penalty", number(1.0)},
                                                                         {"length_penalty", number(1.0)},
                                                                         {"skip_special_tokens", flag(true)}});
  list.refused_all("choose per_device_train_batch_size yourself; `megalith preview memory` helps",
                   {{"auto_find_batch_size", flag()}});
  list.refused_all(
      "Megalith's kernels are compiled ahead of time; there is no torch.compile",
      {{"torch_compile", flag()}, {"torch_compile_backend", opt_text()}, {"torch_compile_mode", opt_text()}});
  list.refused("enable_jit_checkpoint", flag(), "use exit_signal_handler: it saves on SIGTERM");
}

}  // namespace

void add_run_options(OptionList& list) {
  list.topic("Run", "trainer");
  auto run = list.part(&TrainingArguments::run);
  run.add("stage", &RunConfig::stage, "what is trained: pt (text), sft (conversations), dpo (preferences)")
      .refuse({"rm", "ppo", "kto"}, "reward models, PPO and KTO are not part of Megalith; use pt, sft or dpo")
      .pretrain_default(Stage::kPretrain)
      .train_only()
      .implemented();
  run.add("finetuning_type", &RunConfig::finetuning_type, "lora: train adapters; full: train every weight")
      .refuse({"oft", "freeze"}, "OFT and layer freezing are not part of Megalith; use lora or full")
      .pretrain_default(FinetuningType::kFull)
      .train_only()
      .implemented();
  run.add("do_train", &RunConfig::do_train, "train; also when neither do_train nor do_eval is given")
      .train_only()
      .implemented();
  run.add("do_eval", &RunConfig::do_eval, "evaluate; alone: evaluate once and end").train_only().implemented();
  run.add("skip_train", &RunConfig::skip_train, "do not train, only evaluate").pretrain_only().implemented();
  run.add("num_train_epochs", &RunConfig::num_train_epochs, "passes over the data, unless max_steps is set")
      .at_least(0)
      .train_only()
      .implemented();
  run.add("max_steps", &RunConfig::max_steps, "optimizer steps; a positive value wins over num_train_epochs")
      .alias({"train_iters"})
      .at_least(-1)
      .implemented();
  run.add("train_samples", &RunConfig::train_samples, "length of the run in samples, in place of train_iters")
      .at_least(1)
      .pretrain_only()
      .implemented();
  run.add("iterations_to_skip", &RunConfig::iterations_to_skip, "1-based iterations whose data is consumed unused")
      .pretrain_only()
      .implemented();
  run.add("exit_interval", &RunConfig::exit_interval, "leave when the iteration is a multiple of this")
      .at_least(1)
      .pretrain_only()
      .implemented();
  run.add("exit_duration_in_mins", &RunConfig::exit_duration_mins, "save and leave after so many minutes")
      .at_least(0)
      .pretrain_only()
      .implemented();
  run.add("exit_signal_handler", &RunConfig::exit_signal_handler, "SIGTERM: save and leave")
      .pretrain_only()
      .no_effect("SIGTERM always lets a run finish its step, save and leave");
  run.add("early_stopping_steps", &RunConfig::early_stopping_steps,
          "stop after so many evaluations without a better metric; needs metric_for_best_model and evaluation")
      .at_least(1)
      .train_only()
      .implemented();

  list.no_effect("use_mca", flag(true), "Megalith has one path, the one that use_mca selects")
      .refuse({"false"}, "use_mca=false asks for LLaMA-Factory's plain PyTorch path, which Megalith has not")
      .train_only();
  add_generation_and_compilation(list);
}

}  // namespace megalith::config
