#include "megalith/config/option_list_internal.h"

namespace megalith::config {
namespace {

constexpr const char* kNoNetwork =
    "nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`";
const std::vector<std::string> kLogLevels{"debug", "info", "warning", "error", "critical", "passive"};

void add_lines(OptionList& list) {
  auto logging = list.part(&TrainingArguments::logging);
  logging.add("logging_strategy", &LoggingConfig::strategy, "when a line is logged")
      .choices({"no", "steps", "epoch"})
      .train_only()
      .implemented();
  logging.add("logging_steps", &LoggingConfig::steps, "every n steps; below 1 a fraction of all")
      .alias({"log_interval"})
      .at_least(0)
      .pretrain_default(100)
      .implemented();
  logging.add("logging_first_step", &LoggingConfig::first_step, "log the first step too").train_only().implemented();
  logging.add("logging_nan_inf_filter", &LoggingConfig::nan_inf_filter, "log the running mean in place of NaN")
      .train_only()
      .implemented();
  logging.add("log_level", &LoggingConfig::level, "how much is said; passive: MEGALITH_LOG_LEVEL, or info")
      .choices(kLogLevels)
      .implemented()
      .train_only();
  logging
      .add("report_to", &LoggingConfig::report_to,
           "none, tensorboard or all; wandb: TensorBoard files, and the command that uploads them; others are noted "
           "and skipped")
      .implemented();
  logging.add("run_name", &LoggingConfig::run_name, "title of the loss's picture, name in the dashboard")
      .train_only()
      .implemented();
  logging.add("logging_dir", &LoggingConfig::logging_dir, "TensorBoard files (none: output_dir/tensorboard)")
      .alias({"tensorboard_dir"})
      .implemented();
  logging
      .add("include_num_input_tokens_seen", &LoggingConfig::include_num_input_tokens_seen,
           "count all tokens or those that are not padding; true means all")
      .bool_words("all", "no")
      .train_only()
      .implemented();
  logging
      .add("include_effective_tokens_per_second", &LoggingConfig::include_effective_tokens_per_second,
           "log tokens that count in the loss, per second")
      .implemented()
      .train_only();
}

void add_timers(OptionList& list) {
  auto logging = list.part(&TrainingArguments::logging);
  logging.add("timing_log_level", &LoggingConfig::timing_log_level, "0 to 2: how many timers")
      .at_least(0)
      .at_most(2)
      .pretrain_only()
      .implemented();
  logging.add("timing_log_option", &LoggingConfig::timing_log_option, "over ranks: minmax, max or all")
      .choices({"minmax", "max", "all"})
      .pretrain_only()
      .implemented();
  logging.add("tensorboard_log_interval", &LoggingConfig::tensorboard_log_interval, "steps between TensorBoard points")
      .at_least(1)
      .pretrain_only()
      .implemented();
  logging.add("log_throughput", &LoggingConfig::log_throughput, "TFLOP/s a device").pretrain_only().implemented();
  logging.add("log_params_norm", &LoggingConfig::log_params_norm, "norm of the parameters")
      .implemented()
      .pretrain_only();
  logging.add("log_num_zeros_in_grad", &LoggingConfig::log_num_zeros_in_grad, "zeros in the gradients")
      .pretrain_only()
      .implemented();
  logging.add("profile", &LoggingConfig::profile, "record a trace").pretrain_only().implemented();
  logging.add("profile_step_start", &LoggingConfig::profile_step_start, "first step of the trace")
      .at_least(0)
      .pretrain_only()
      .implemented();
  logging.add("profile_step_end", &LoggingConfig::profile_step_end, "step after its last")
      .at_least(0)
      .pretrain_only()
      .implemented();
  logging.add("profile_ranks", &LoggingConfig::profile_ranks, "ranks that record")
      .at_least(0)
      .pretrain_only()
      .implemented();
}

void add_services(OptionList& list) {
  list.no_effect("log_level_replica", text("warning"), "every rank writes its own log file").choices(kLogLevels);
  list.no_effect("disable_tqdm", opt_flag(), "the progress line appears on terminals only");
  list.no_effect("log_on_each_node", flag(true), "every rank writes its own log file");
  list.no_effect("plot_loss", flag(), "loss.svg is always written");
  list.no_effect_all("use profile and `megalith dashboard`", {{"skip_memory_metrics", flag(true)},
                                                              {"debug", text("")},
                                                              {"enable_torch_profiler", flag()},
                                                              {"profiler_output_dir", opt_text()},
                                                              {"profiler_wait_steps", integer(1)},
                                                              {"profiler_warmup_steps", integer(1)},
                                                              {"profiler_active_steps", integer(1)},
                                                              {"profiler_repeat", integer(1)},
                                                              {"profiler_record_shapes", flag(true)},
                                                              {"profiler_profile_memory", flag(true)},
                                                              {"profiler_with_stack", flag(true)},
                                                              {"profile_modules", opt_text()},
                                                              {"use_pytorch_profiler", flag()}});
  list.no_effect_all("always logged, or part of the dashboard", {{"log_timers_to_tensorboard", flag()},
                                                                 {"log_memory_to_tensorboard", flag()},
                                                                 {"log_validation_ppl_to_tensorboard", flag()},
                                                                 {"log_world_size_to_tensorboard", flag()},
                                                                 {"log_batch_size_to_tensorboard", flag()},
                                                                 {"log_loss_scale_to_tensorboard", flag(true)},
                                                                 {"log_learning_rate_to_tensorboard", flag(true)},
                                                                 {"log_progress", flag()},
                                                                 {"log_energy", flag()},
                                                                 {"tensorboard_queue_size", integer(1000)},
                                                                 {"logging_level", opt_integer()},
                                                                 {"include_tokens_per_second", flag()}});
  list.refused_all(kNoNetwork, {{"push_to_hub", flag()}, {"use_swanlab", flag()}});
  list.no_effect_all(kNoNetwork, {{"hub_model_id", opt_text()},
                                  {"hub_strategy", text("every_save")},
                                  {"hub_token", opt_text()},
                                  {"hub_private_repo", opt_flag()},
                                  {"hub_always_push", flag()},
                                  {"hub_revision", opt_text()},
                                  {"push_to_hub_model_id", opt_text()},
                                  {"push_to_hub_organization", opt_text()},
                                  {"push_to_hub_token", opt_text()},
                                  {"swanlab_project", text("llamafactory")},
                                  {"swanlab_workspace", opt_text()},
                                  {"swanlab_run_name", opt_text()},
                                  {"swanlab_mode", text("cloud")},
                                  {"swanlab_api_key", opt_text()},
                                  {"swanlab_logdir", opt_text()},
                                  {"swanlab_lark_webhook_url", opt_text()},
                                  {"swanlab_lark_secret", opt_text()},
                                  {"project", text("huggingface")},
                                  {"trackio_space_id", text("trackio")},
                                  {"trackio_bucket_id", opt_text()},
                                  {"trackio_static_space_id", opt_text()},
                                  {"wandb_project", opt_text()},
                                  {"wandb_exp_name", opt_text()},
                                  {"wandb_entity", opt_text()},
                                  {"wandb_save_dir", opt_text()},
                                  {"one_logger", flag(true)}});
}

void add_evaluation(OptionList& list) {
  list.topic("Evaluation", "trainer");
  auto eval = list.part(&TrainingArguments::eval);
  eval.add("eval_strategy", &EvalConfig::strategy, "when to evaluate; pretrain evaluates when eval_interval is set")
      .alias({"evaluation_strategy"})
      .choices({"no", "steps", "epoch"})
      .train_only()
      .implemented();
  eval.add("eval_steps", &EvalConfig::steps, "every n steps; below 1 a fraction of all (none: logging_steps)")
      .alias({"eval_interval"})
      .at_least(0)
      .implemented();
  eval.add("eval_delay", &EvalConfig::delay, "steps or epochs before the first").at_least(0).train_only().implemented();
  eval.add("eval_on_start", &EvalConfig::on_start, "evaluate once before training").train_only().implemented();
  eval.add("eval_iters", &EvalConfig::eval_iters, "iterations of one evaluation")
      .at_least(0)
      .pretrain_only()
      .implemented();
  eval.add("prediction_loss_only", &EvalConfig::prediction_loss_only, "the reference's evaluation requires it")
      .no_effect("evaluation computes losses only")
      .train_only();
  eval.add("load_best_model_at_end", &EvalConfig::load_best_model_at_end, "end with the best checkpoint's weights")
      .train_only()
      .implemented();
  eval.add("metric_for_best_model", &EvalConfig::metric_for_best_model, "which metric (none: loss)")
      .train_only()
      .implemented();
  eval.add("greater_is_better", &EvalConfig::greater_is_better, "none: unless the metric's name ends in loss")
      .train_only()
      .implemented();
  list.no_effect_all("evaluation computes losses only", {{"eval_accumulation_steps", opt_integer()},
                                                         {"batch_eval_metrics", flag()},
                                                         {"include_for_metrics", words()},
                                                         {"include_inputs_for_metrics", flag()},
                                                         {"eval_do_concat_batches", flag(true)},
                                                         {"eval_use_gather_object", flag()},
                                                         {"jit_mode_eval", flag()}});
  list.refused("compute_accuracy", flag(), "evaluation computes losses only");
}

}  // namespace

void add_logging_options(OptionList& list) {
  list.topic("Logging", "trainer");
  add_lines(list);
  add_timers(list);
  add_services(list);
  add_evaluation(list);
}

}  // namespace megalith::config
