// Options of logging, timers, profiles and evaluation. Intervals follow Hugging Face: a number of 1 or more counts
// steps, a number below 1 is a fraction of the whole run.
#include "megalith/config/option_list_internal.h"

namespace megalith::config {
namespace {

// Hugging Face's levels; passive leaves the choice to the environment.
const std::vector<std::string> kLogLevels{"debug", "info", "warning", "error", "critical", "passive"};

// One line per interval, and where it is sent.
void add_lines(OptionList& list) {
  auto logging = list.part(&TrainingArguments::logging);
  logging.add("logging_strategy", &LoggingConfig::strategy, "when a line is logged")
      .choices({"no", "steps", "epoch"})
      .train_only();
  logging.add("logging_steps", &LoggingConfig::steps, "every n steps; below 1 a fraction of all")
      .alias({"log_interval"})
      .at_least(0)
      .pretrain_default(100);
  logging.add("logging_first_step", &LoggingConfig::first_step, "log the first step too").train_only();
  logging.add("logging_nan_inf_filter", &LoggingConfig::nan_inf_filter, "log the running mean in place of NaN")
      .train_only();
  logging.add("log_level", &LoggingConfig::level, "how much is logged; passive: MEGALITH_LOG_LEVEL, or info")
      .choices(kLogLevels)
      .train_only();
  logging.add("report_to", &LoggingConfig::report_to,
              "none, tensorboard or all; wandb: TensorBoard files, and the command that uploads them; others are noted "
              "and skipped");
  logging.add("run_name", &LoggingConfig::run_name, "title of the loss plot, name in the dashboard").train_only();
  logging.add("logging_dir", &LoggingConfig::logging_dir, "TensorBoard files (none: output_dir/tensorboard)")
      .alias({"tensorboard_dir"});
  // Older versions of the reference had a boolean here.
  logging
      .add("include_num_input_tokens_seen", &LoggingConfig::include_num_input_tokens_seen,
           "count all tokens or those that are not padding; true means all")
      .bool_words("all", "no")
      .train_only();
  logging
      .add("include_effective_tokens_per_second", &LoggingConfig::include_effective_tokens_per_second,
           "log tokens that count in the loss, per second")
      .train_only();
}

// Megatron's measurements, and traces of a few steps.
void add_timers(OptionList& list) {
  auto logging = list.part(&TrainingArguments::logging);
  logging.add("timing_log_level", &LoggingConfig::timing_log_level, "0 to 2: how many timers")
      .at_least(0)
      .at_most(2)
      .pretrain_only();
  logging.add("timing_log_option", &LoggingConfig::timing_log_option, "over ranks: minmax, max or all")
      .choices({"minmax", "max", "all"})
      .pretrain_only();
  logging.add("tensorboard_log_interval", &LoggingConfig::tensorboard_log_interval, "steps between TensorBoard points")
      .at_least(1)
      .pretrain_only();
  logging.add("log_throughput", &LoggingConfig::log_throughput, "TFLOP/s per device").pretrain_only();
  logging
      .add("log_progress", &LoggingConfig::log_progress,
           "jobs and checkpoints, with throughputs, in progress.txt of the save folder")
      .pretrain_only();
  logging.add("log_energy", &LoggingConfig::log_energy, "joules per step and watts per GPU; needs NVML")
      .pretrain_only();
  logging.add("log_params_norm", &LoggingConfig::log_params_norm, "norm of the parameters").pretrain_only();
  logging.add("log_num_zeros_in_grad", &LoggingConfig::log_num_zeros_in_grad, "zeros in the gradients").pretrain_only();
  logging.add("profile", &LoggingConfig::profile,
              "record the kernels of some steps: trace and tables in profile/ of the output folder");
  logging.add("profile_step_start", &LoggingConfig::profile_step_start, "steps before the first profiled one")
      .at_least(0);
  logging.add("profile_step_end", &LoggingConfig::profile_step_end, "last profiled step").at_least(0);
  logging.add("profile_ranks", &LoggingConfig::profile_ranks, "ranks that are profiled").at_least(0);
}

// Texts and distributions that a run records for the dashboard.
void add_records(OptionList& list) {
  auto logging = list.part(&TrainingArguments::logging);
  logging
      .add("generate_samples_every", &LoggingConfig::generate_samples_every,
           "every n steps, continue a few prompts with the current weights and keep the texts, with samples of the "
           "training data, in samples.jsonl (none: never)")
      .at_least(1);
  logging.add("generate_samples_prompts", &LoggingConfig::generate_samples_prompts,
              "file with a prompt per line: text, a JSON string or a JSON list of messages (none: beginnings of "
              "samples)");
  logging
      .add("generate_samples_max_new_tokens", &LoggingConfig::generate_samples_max_new_tokens,
           "most tokens of a generated sample")
      .at_least(1);
  logging
      .add("log_histograms_interval", &LoggingConfig::log_histograms_interval,
           "steps between histograms of weights and gradients by layer (none: never)")
      .at_least(1);
}

// When to evaluate, and which metric decides about the best checkpoint.
void add_evaluation(OptionList& list) {
  list.topic("Evaluation");
  auto eval = list.part(&TrainingArguments::eval);
  eval.add("eval_strategy", &EvalConfig::strategy, "when to evaluate; pretrain evaluates when eval_interval is set")
      .alias({"evaluation_strategy"})
      .choices({"no", "steps", "epoch"})
      .train_only();
  eval.add("eval_steps", &EvalConfig::steps, "every n steps; below 1 a fraction of all (none: logging_steps)")
      .alias({"eval_interval"})
      .at_least(0);
  eval.add("eval_delay", &EvalConfig::delay, "steps or epochs before the first").at_least(0).train_only();
  eval.add("eval_on_start", &EvalConfig::on_start, "evaluate once before training").train_only();
  eval.add("eval_iters", &EvalConfig::eval_iters, "iterations of one evaluation").at_least(0).pretrain_only();
  eval.add("prediction_loss_only", &EvalConfig::prediction_loss_only, "the reference's evaluation requires it")
      .no_effect("evaluation computes losses only")
      .train_only();
  eval.add("compute_accuracy", &EvalConfig::compute_accuracy, "evaluation reports the accuracy of tokens")
      .no_effect(
          "evaluation always reports eval_token_accuracy; refused with cross_entropy_loss_fusion, without logits")
      .train_only();
  // The metric is one of evaluation: derive() adds the prefix eval_ and, unless given, the direction.
  eval.add("load_best_model_at_end", &EvalConfig::load_best_model_at_end, "end with the best checkpoint's weights")
      .train_only();
  eval.add("metric_for_best_model", &EvalConfig::metric_for_best_model, "which metric (none: loss)").train_only();
  eval.add("greater_is_better", &EvalConfig::greater_is_better, "none: unless the metric's name ends in loss")
      .train_only();
}

}  // namespace

void add_logging_options(OptionList& list) {
  list.topic("Logging");
  add_lines(list);
  add_timers(list);
  add_records(list);
  list.no_effect("log_level_replica", text("warning"), "every rank writes its own log file").choices(kLogLevels);
  add_evaluation(list);
}

}  // namespace megalith::config
