// Options of checkpoints (what is written when, how, and what is read back) and of fault detection.
//
// Saving follows Hugging Face for `train` (output_dir, save_strategy, checkpoint-N folders) and Megatron for
// `pretrain` (save, save_interval, load). Many of Megatron's switches choose between file formats; Megalith has one
// format that every layout reads, so they have no effect.
#include "megalith/config/option_list_internal.h"

namespace megalith::config {
namespace {

// When to write, and what is kept.
void add_saving(OptionList& list) {
  auto save = list.part(&TrainingArguments::save);
  save.add("output_dir", &SaveConfig::output_dir, "everything that the run writes; pretrain without it writes nothing")
      .alias({"save"})
      .no_pretrain_default();
  save.add("overwrite_output_dir", &SaveConfig::overwrite_output_dir,
           "start over in an output_dir that is not empty; without it, a run with checkpoints there continues")
      .train_only();
  // Continuing: resume_from_checkpoint names one checkpoint, `load` a folder of them.
  save.add("resume_from_checkpoint", &SaveConfig::resume_from_checkpoint,
           "checkpoint folder; true or latest: the last in output_dir; auto: the newest there that is whole, if any")
      .train_only();
  save.add("load", &SaveConfig::load,
           "folder whose last checkpoint is continued; without any, the run starts from scratch")
      .pretrain_only();
  save.add("save_strategy", &SaveConfig::strategy, "when to save; best needs an evaluation metric").train_only();
  save.add("save_steps", &SaveConfig::steps, "every n steps; below 1 a fraction of all")
      .alias({"save_interval"})
      .at_least(0)
      .no_pretrain_default();
  // Old checkpoints are removed only after a newer one is complete.
  save.add("save_total_limit", &SaveConfig::total_limit, "checkpoints kept; the best is always one of them")
      .at_least(0)
      .train_only();
  save.add("save_retain_interval", &SaveConfig::retain_interval, "keep these for good; a multiple of save_interval")
      .at_least(1)
      .pretrain_only();
  save.add("save_only_model", &SaveConfig::only_model, "weights only; such a run cannot resume").train_only();
  save.add("save_hf_model", &SaveConfig::hf_model, "every checkpoint also as a Hugging Face folder")
      .train_only()
      .no_effect("every checkpoint is a Hugging Face folder");
  save.add("save_merged_model", &SaveConfig::merged_model, "LoRA: export with the adapter merged").train_only();
  list.no_effect("save_safetensors", flag(true), "weights are always safetensors")
      .refuse({"false"}, "weights are always safetensors; pickle files are not written");
}

// How to write.
void add_files(OptionList& list) {
  auto checkpoint = list.part(&TrainingArguments::checkpoint);
  checkpoint.add("ckpt_format", &CheckpointConfig::format, "file kind of the reference")
      .alias({"dist_ckpt_format"})
      .choices({"legacy", "torch", "torch_dist", "torch_dcp", "zarr", "fsdp_dtensor"})
      .pretrain_default("torch_dist")
      .no_effect("Megalith writes one sharded safetensors format that every layout can read");
  // With async_save a step waits for the copy of the state, not for the disk.
  checkpoint.add("async_save", &CheckpointConfig::async_save, "write while training continues");
  list.no_effect("use_persistent_ckpt_worker", flag(false), "one writer always serves the whole run").pretrain_only();
  checkpoint
      .add("checkpoint_files", &CheckpointConfig::files,
           "optimizer state in files that all ranks write into, or one for each rank, for network file systems")
      .choices({"shared", "per_writer"});
  checkpoint
      .add("dist_ckpt_strictness", &CheckpointConfig::strictness,
           "what tensors do that the checkpoint lacks (unexpected) or that the run has no use for (missing)")
      .choices({"assume_ok_unexpected", "log_unexpected", "log_all", "raise_unexpected", "raise_all",
                "return_unexpected", "return_all", "ignore_all"})
      .pretrain_only();
  // Switches of the reference for what always holds here.
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
  checkpoint.add("no_save_optim", &CheckpointConfig::no_save_optim, "leave out the optimizer").pretrain_only();
  checkpoint.add("no_save_rng", &CheckpointConfig::no_save_rng, "leave out random states").pretrain_only();
}

// Rolling checkpoints, from which a run continues after a failure and which nobody keeps.
void add_non_persistent(OptionList& list) {
  auto checkpoint = list.part(&TrainingArguments::checkpoint);
  checkpoint
      .add("non_persistent_save_interval", &CheckpointConfig::non_persistent_interval,
           "steps between checkpoints of which only the newest is kept")
      .at_least(1)
      .pretrain_only();
  checkpoint
      .add("non_persistent_ckpt_type", &CheckpointConfig::non_persistent_type,
           "global: such checkpoints are written in full; local: each rank writes what it holds to a disk of its"
           " machine; load takes the newest one if it is not older")
      .choices({"global", "local"})
      .refuse({"in_memory"}, "no state is kept in memory alone; use local with a folder in memory (/dev/shm)")
      .pretrain_only();
  checkpoint
      .add("non_persistent_global_ckpt_dir", &CheckpointConfig::non_persistent_dir,
           "their folder (none: non_persistent in the folders of save and load)")
      .pretrain_only();
  checkpoint
      .add("non_persistent_local_ckpt_dir", &CheckpointConfig::non_persistent_local_dir,
           "local: the folder on each machine; needed")
      .pretrain_only();
  checkpoint
      .add("non_persistent_local_ckpt_algo", &CheckpointConfig::non_persistent_local_algo,
           "local: what a rank writes; atomic: all that it holds")
      .choices({"atomic"})
      .refuse({"fully_parallel"}, "ranks that hold the same parameters all write them; use atomic")
      .no_effect("each rank writes all that it holds")
      .pretrain_only();
  checkpoint.add("replication", &CheckpointConfig::replication, "local: ranks also keep copies of each other's state")
      .pretrain_only();
  checkpoint
      .add("replication_jump", &CheckpointConfig::replication_jump,
           "replication: distance between ranks that keep copies for each other; usually the ranks of a machine")
      .at_least(1)
      .pretrain_only();
  checkpoint
      .add("replication_factor", &CheckpointConfig::replication_factor,
           "replication: ranks that hold each state, its own rank included")
      .at_least(2)
      .pretrain_only();
}

// Everything is read back by default; the options leave parts out or take them from elsewhere.
void add_loading(OptionList& list) {
  auto checkpoint = list.part(&TrainingArguments::checkpoint);
  checkpoint.add("no_load_optim", &CheckpointConfig::no_load_optim, "start with a fresh optimizer").pretrain_only();
  checkpoint.add("no_load_rng", &CheckpointConfig::no_load_rng, "seed again").pretrain_only();
  checkpoint.add("finetune", &CheckpointConfig::finetune, "load weights only and start at iteration 0").pretrain_only();
  checkpoint
      .add("exit_on_missing_checkpoint", &CheckpointConfig::exit_on_missing_checkpoint, "stop when load finds nothing")
      .pretrain_only();
  checkpoint.add("ckpt_step", &CheckpointConfig::ckpt_step, "this checkpoint in place of the last")
      .at_least(0)
      .pretrain_only();
  checkpoint.add("override_ckpt_iteration", &CheckpointConfig::override_iteration, "count from here; not with finetune")
      .at_least(0)
      .pretrain_only();
  checkpoint
      .add("use_checkpoint_args", &CheckpointConfig::use_checkpoint_args,
           "take the model's shape and tokenizer from the checkpoint, but for options that are given")
      .pretrain_only();
  checkpoint
      .add("load_main_params_from_ckpt", &CheckpointConfig::load_main_params,
           "fp32 master weights from the checkpoint; needs no_load_optim")
      .pretrain_only();
  checkpoint
      .add("pretrained_checkpoint", &CheckpointConfig::pretrained_checkpoint,
           "weights to start from where load holds none")
      .pretrain_only();
}

}  // namespace

void add_checkpoint_options(OptionList& list) {
  list.topic("Saving and resuming");
  add_saving(list);
  add_files(list);
  add_non_persistent(list);
  add_loading(list);
}

void add_fault_options(OptionList& list) {
  list.topic("Faults");
  auto fault = list.part(&TrainingArguments::fault);
  // A bad result may come from the data, the program or broken hardware. Computing it again on the same and then on
  // another device tells them apart (train/faults/rerun_machine.h).
  fault.add("rerun_mode", &FaultConfig::rerun_mode,
            "NaN, Inf or a spike: compute the step again, here and then elsewhere (validate_results); end at once"
            " (disabled); or run every step twice and report (report_determinism_stats)");
  fault
      .add("error_injection_rate", &FaultConfig::error_injection_rate,
           "for tests: about one in this many results is rejected although it is good")
      .at_least(0);
  fault.add("error_injection_type", &FaultConfig::error_injection_type, "for tests: what the reruns seem to show")
      .choices({"correct_result", "transient_error", "persistent_error"});
  fault.add("check_for_spiky_loss", &FaultConfig::check_for_spiky_loss,
            "a loss 10 times the largest of the first 100 is suspicious");
  fault.add("check_for_large_grads", &FaultConfig::check_for_large_grads, "the same check for gradients");
  fault
      .add("ft_num_warmup_iters", &FaultConfig::ft_num_warmup_iters,
           "steps after a start that have the time limit of the set-up")
      .at_least(0);
  fault.add("calc_ft_timeouts", &FaultConfig::calc_ft_timeouts,
            "learn the time limits of hung ranks from the run and keep them in output_dir/ft_state.json; limits given"
            " with --rank_section_timeouts stay");
  fault.add("inprocess_restart", &FaultConfig::inprocess_restart,
            "with --max_restarts: ranks that only another's failure has ended keep their processes, and only lost ones"
            " are started again");
  // Ranks that slow the others down.
  fault.add("log_straggler", &FaultConfig::log_straggler, "compute and wait times of all ranks; name slow ones");
  fault.add("straggler_minmax_count", &FaultConfig::straggler_minmax_count, "how many ranks the report names")
      .at_least(1);
  fault.add("straggler_ctrlr_port", &FaultConfig::straggler_ctrlr_port, "port that switches the report at run time")
      .at_least(1)
      .at_most(65535)
      .pretrain_only()
      .no_effect("log_straggler alone switches the report");
  fault
      .add("check_weight_hash_across_dp_replicas_interval", &FaultConfig::check_weight_hash_interval,
           "compare the parameters of data-parallel replicas every n steps; end the run where they differ")
      .at_least(1);
}

}  // namespace megalith::config
