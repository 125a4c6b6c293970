#include "megalith/config/option_list_internal.h"

namespace megalith::config {
namespace {

void add_saving(OptionList& list) {
  auto save = list.part(&TrainingArguments::save);
  save.add("output_dir", &SaveConfig::output_dir, "everything that the run writes; pretrain without it writes nothing")
      .alias({"save"})
      .no_pretrain_default()
      .implemented();
  save.add("overwrite_output_dir", &SaveConfig::overwrite_output_dir, "start anew in an output_dir that is not empty")
      .implemented()
      .train_only();
  save.add("resume_from_checkpoint", &SaveConfig::resume_from_checkpoint,
           "checkpoint folder; true or latest: the last in output_dir; auto: the newest there that is whole, if any")
      .train_only()
      .implemented();
  save.add("load", &SaveConfig::load, "folder whose last checkpoint is continued; without any the run starts afresh")
      .pretrain_only()
      .implemented();
  save.add("save_strategy", &SaveConfig::strategy, "when to save; best needs an evaluation metric")
      .train_only()
      .implemented();
  save.add("save_steps", &SaveConfig::steps, "every n steps; below 1 a fraction of all")
      .alias({"save_interval"})
      .at_least(0)
      .no_pretrain_default()
      .implemented();
  save.add("save_total_limit", &SaveConfig::total_limit, "checkpoints kept; the best is always one of them")
      .at_least(0)
      .train_only()
      .implemented();
  save.add("save_retain_interval", &SaveConfig::retain_interval, "keep these for good; a multiple of save_interval")
      .at_least(1)
      .pretrain_only()
      .implemented();
  save.add("save_only_model", &SaveConfig::only_model, "weights only; such a run cannot resume")
      .train_only()
      .implemented();
  save.add("save_hf_model", &SaveConfig::hf_model, "every checkpoint also as a Hugging Face folder")
      .train_only()
      .no_effect("every checkpoint is a Hugging Face folder");
  save.add("save_merged_model", &SaveConfig::merged_model, "LoRA: export with the adapter merged")
      .train_only()
      .implemented();
  list.no_effect("save_on_each_node", flag(), "ranks write their shares of one checkpoint");
  list.no_effect("save_safetensors", flag(true), "weights are always safetensors")
      .refuse({"false"}, "weights are always safetensors; pickle files are not written");
  list.no_effect("restore_callback_states_from_checkpoint", flag(), "callbacks are restored by the trainer's state");
}

void add_files(OptionList& list) {
  auto checkpoint = list.part(&TrainingArguments::checkpoint);
  checkpoint.add("ckpt_format", &CheckpointConfig::format, "file kind of the reference")
      .alias({"dist_ckpt_format"})
      .choices({"legacy", "torch", "torch_dist", "torch_dcp", "zarr", "fsdp_dtensor"})
      .pretrain_default("torch_dist")
      .no_effect("Megalith writes one sharded safetensors format that every layout can read");
  checkpoint.add("async_save", &CheckpointConfig::async_save, "write while training goes on").implemented();
  checkpoint
      .add("use_persistent_ckpt_worker", &CheckpointConfig::use_persistent_worker,
           "one writer for the whole run; async_save needs it")
      .pretrain_only()
      .implemented();
  checkpoint
      .add("checkpoint_files", &CheckpointConfig::files,
           "optimizer state in files that all ranks write into, or one for each rank, for network file systems")
      .choices({"shared", "per_writer"})
      .implemented();
  checkpoint.add("dist_ckpt_strictness", &CheckpointConfig::strictness, "what missing or unexpected keys do")
      .choices({"assume_ok_unexpected", "log_unexpected", "log_all", "raise_unexpected", "raise_all",
                "return_unexpected", "return_all", "ignore_all"})
      .pretrain_only();
  checkpoint.add("ckpt_fully_parallel_save", &CheckpointConfig::fully_parallel_save, "every rank writes its share")
      .pretrain_only()
      .no_effect("ranks always write their shares of a checkpoint");
  checkpoint.add("ckpt_fully_parallel_load", &CheckpointConfig::fully_parallel_load, "every rank reads its share")
      .pretrain_only()
      .no_effect("ranks always read what they need and no more");
  checkpoint.add("ckpt_d2h_non_blocking", &CheckpointConfig::d2h_non_blocking, "copy to the host asynchronously")
      .train_only()
      .no_effect("with async_save the state is always copied to pinned memory while the next step computes");
  checkpoint
      .add("distrib_optim_fully_reshardable", &CheckpointConfig::fully_reshardable,
           "optimizer state independent of the data-parallel layout")
      .alias({"dist_ckpt_optim_fully_reshardable"})
      .no_effect("every layout reads what any other wrote");
  checkpoint
      .add("distrib_optim_fully_reshardable_mem_efficient", &CheckpointConfig::fully_reshardable_mem_efficient,
           "the same with less memory")
      .alias({"distrib_optim_fully_reshardable_mem_efficient_save"})
      .no_effect("nothing is gathered for a checkpoint");
  checkpoint.add("no_save_optim", &CheckpointConfig::no_save_optim, "leave out the optimizer")
      .pretrain_only()
      .implemented();
  checkpoint.add("no_save_rng", &CheckpointConfig::no_save_rng, "leave out random states")
      .pretrain_only()
      .implemented();
}

void add_loading(OptionList& list) {
  auto checkpoint = list.part(&TrainingArguments::checkpoint);
  checkpoint.add("no_load_optim", &CheckpointConfig::no_load_optim, "start the optimizer anew")
      .pretrain_only()
      .implemented();
  checkpoint.add("no_load_rng", &CheckpointConfig::no_load_rng, "seed anew").pretrain_only().implemented();
  checkpoint.add("finetune", &CheckpointConfig::finetune, "load weights only and start at iteration 0")
      .pretrain_only()
      .implemented();
  checkpoint
      .add("exit_on_missing_checkpoint", &CheckpointConfig::exit_on_missing_checkpoint, "stop when load finds nothing")
      .pretrain_only()
      .implemented();
  checkpoint.add("ckpt_step", &CheckpointConfig::ckpt_step, "this checkpoint in place of the last")
      .at_least(0)
      .pretrain_only()
      .implemented();
  checkpoint.add("override_ckpt_iteration", &CheckpointConfig::override_iteration, "count from here; not with finetune")
      .at_least(0)
      .pretrain_only()
      .implemented();
  checkpoint
      .add("use_checkpoint_args", &CheckpointConfig::use_checkpoint_args,
           "take the model's shape and tokenizer from the checkpoint, but for options that are given")
      .pretrain_only()
      .implemented();
  checkpoint
      .add("load_main_params_from_ckpt", &CheckpointConfig::load_main_params,
           "fp32 master weights from the checkpoint; needs no_load_optim")
      .pretrain_only();
  checkpoint
      .add("pretrained_checkpoint", &CheckpointConfig::pretrained_checkpoint,
           "weights to start from where load holds none")
      .pretrain_only()
      .implemented();
  list.no_effect_all("the format is recognised and its structure checked at every save and load",
                     {{"auto_detect_ckpt_format", flag()},
                      {"use_dist_ckpt", flag()},
                      {"ckpt_assume_constant_structure", flag()},
                      {"ckpt_convert_format", opt_text()},
                      {"ckpt_convert_save", opt_text()}});
  list.refused_all("checkpoints outside output_dir's file system are not part of Megalith",
                   {{"non_persistent_save_interval", opt_integer()},
                    {"non_persistent_ckpt_type", opt_text()},
                    {"non_persistent_global_ckpt_dir", opt_text()},
                    {"non_persistent_local_ckpt_dir", opt_text()},
                    {"non_persistent_local_ckpt_algo", text("fully_parallel")}});
}

}  // namespace

void add_checkpoint_options(OptionList& list) {
  list.topic("Saving and resuming", "checkpoint");
  add_saving(list);
  add_files(list);
  add_loading(list);
}

void add_fault_options(OptionList& list) {
  list.topic("Faults", "faults");
  auto fault = list.part(&TrainingArguments::fault);
  fault
      .add("rerun_mode", &FaultConfig::rerun_mode,
           "NaN, Inf or a spike: compute the step again, here and then elsewhere (validate_results); end at once"
           " (disabled); or run every step twice and report (report_determinism_stats)")
      .implemented();
  fault
      .add("error_injection_rate", &FaultConfig::error_injection_rate,
           "for tests: about one of so many results is rejected although it is good")
      .at_least(0)
      .implemented();
  fault.add("error_injection_type", &FaultConfig::error_injection_type, "for tests: what the reruns seem to show")
      .choices({"correct_result", "transient_error", "persistent_error"})
      .implemented();
  fault
      .add("check_for_spiky_loss", &FaultConfig::check_for_spiky_loss,
           "a loss 10 times the largest of the first 100 is suspicious")
      .implemented();
  fault.add("check_for_large_grads", &FaultConfig::check_for_large_grads, "likewise gradients").implemented();
  fault
      .add("ft_num_warmup_iters", &FaultConfig::ft_num_warmup_iters,
           "steps after a start that have the time limit of the set-up")
      .at_least(0)
      .implemented();
  fault.add("log_straggler", &FaultConfig::log_straggler, "compute and wait times of all ranks; name slow ones")
      .implemented();
  fault.add("straggler_minmax_count", &FaultConfig::straggler_minmax_count, "how many ranks the report names")
      .at_least(1)
      .implemented();
  fault.add("straggler_ctrlr_port", &FaultConfig::straggler_ctrlr_port, "port that switches the report at run time")
      .at_least(1)
      .at_most(65535)
      .pretrain_only()
      .no_effect("log_straggler alone switches the report");
  fault
      .add("check_weight_hash_across_dp_replicas_interval", &FaultConfig::check_weight_hash_interval,
           "compare the parameters of data-parallel replicas every n steps; end the run where they differ")
      .at_least(1)
      .implemented();
  list.no_effect_all("the launcher restarts ranks by itself", {{"enable_ft_package", flag()},
                                                               {"calc_ft_timeouts", flag()},
                                                               {"disable_straggler_on_startup", flag()},
                                                               {"adlr_autoresume", flag()},
                                                               {"adlr_autoresume_interval", integer(1000)},
                                                               {"inprocess_restart", flag()}});
}

void add_other_options(OptionList& list) {
  list.topic("Others", "models");
  list.no_effect_all("settings of other launchers; see `megalith train --help` for --nproc",
                     {{"ray_num_workers", integer(1)},
                      {"ray_init_kwargs", dict()},
                      {"ray_scope", text("last")},
                      {"tpu_num_cores", opt_integer()},
                      {"tpu_metrics_debug", flag()},
                      {"use_mps_device", flag()},
                      {"use_ipex", flag()},
                      {"mp_parameters", text("")},
                      {"dispatch_batches", opt_flag()},
                      {"split_batches", opt_flag()},
                      {"torchdynamo", opt_text()},
                      {"yaml_cfg", opt_text()},
                      {"enable_experimental", flag()}});
  list.refused_all("another training back end; Megalith is its own", {{"use_ray", flag()},
                                                                      {"use_megatron_bridge", flag()},
                                                                      {"use_hyper_parallel", flag()},
                                                                      {"hyper_parallel_args", opt_text()},
                                                                      {"hyper_parallel_cp_size", integer(1)}});
  list.refused_all("linear attention comes with a Hugging Face folder (qwen3_next), not from options",
                   {{"experimental_attention_variant", opt_text()},
                    {"linear_attention_freq", opt_text()},
                    {"linear_conv_kernel_dim", opt_integer()},
                    {"linear_key_head_dim", opt_integer()},
                    {"linear_value_head_dim", opt_integer()},
                    {"linear_num_key_heads", opt_integer()},
                    {"linear_num_value_heads", opt_integer()}});
  list.refused_all("models of this kind are not part of Megalith", {{"spec", words()},
                                                                    {"use_legacy_models", flag()},
                                                                    {"hybrid_override_pattern", opt_text()},
                                                                    {"hybrid_attention_ratio", number(0.0)},
                                                                    {"hybrid_mlp_ratio", number(0.0)},
                                                                    {"heterogeneous_layers_config_path", opt_text()},
                                                                    {"window_size", opt_text()},
                                                                    {"openai_gelu", flag()},
                                                                    {"encoder_num_layers", opt_integer()},
                                                                    {"decoder_num_layers", opt_integer()},
                                                                    {"decoder_seq_length", opt_integer()},
                                                                    {"no_rope_freq", opt_text()},
                                                                    {"qk_l2_norm", flag()},
                                                                    {"moe_apply_probs_on_input", flag()},
                                                                    {"fine_grained_activation_offloading", flag()},
                                                                    {"offload_modules", words()},
                                                                    {"init_method_xavier_uniform", flag()}});
}

}  // namespace megalith::config
