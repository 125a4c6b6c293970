// The rate over time has two vocabularies: Hugging Face's first, then Megatron's. A run is described in one of them;
// run/resolve/schedule.cc turns either into the same schedule. Options of the optimizer, gradient buffers, precision
// and the learning-rate schedule. Hugging Face and Megatron name the same things differently; both names lead to one
// member where they mean the same.
#include "megalith/config/option_list_internal.h"

namespace megalith::config {
namespace {

// Refusals name the remedy; both `optimizer` and `optim` lead here.
constexpr const char* kNoSuchOptimizer =
    "Megalith has adam (AdamW), sgd, muon and lion; set optimizer to one of them, or optim to adamw_torch or sgd";

// The update rule and its hyperparameters. `optimizer` is Megatron's name and `optim` Hugging Face's; derive() lets an
// sgd of either win, because each has adam as its default.
void add_update_rule(OptionList& list) {
  auto optimizer = list.part(&TrainingArguments::optimizer);
  optimizer
      .add("optimizer", &OptimizerConfig::optimizer,
           "adam (AdamW), sgd, lion, or muon for weight matrices with muon_scalar_optimizer for the rest")
      .refuse({"dist_muon"}, "set optimizer muon and use_distributed_optimizer, which shares its work");
  optimizer.add("optim", &OptimizerConfig::optim, "HF's name of the optimizer; sgd selects sgd")
      .refuse_others(kNoSuchOptimizer)
      .train_only();
  optimizer.add("learning_rate", &OptimizerConfig::learning_rate, "peak learning rate (required by pretrain)")
      .alias({"lr"})
      .at_least(0)
      .no_pretrain_default();
  optimizer.add("weight_decay", &OptimizerConfig::weight_decay, "decoupled; not on biases and norms")
      .at_least(0)
      .pretrain_default(0.01);
  // Megatron moves weight decay over the run; weight_decay itself is then ignored in favor of start and end.
  optimizer
      .add("weight_decay_incr_style", &OptimizerConfig::weight_decay_incr_style,
           "how weight decay changes over the run; linear and cosine need start and end")
      .pretrain_only();
  optimizer.add("start_weight_decay", &OptimizerConfig::start_weight_decay, "weight decay at the start of the run")
      .at_least(0)
      .pretrain_only();
  optimizer.add("end_weight_decay", &OptimizerConfig::end_weight_decay, "weight decay at the end of the run")
      .at_least(0)
      .pretrain_only();
  optimizer.add("apply_wd_to_qk_layernorm", &OptimizerConfig::apply_wd_to_qk_layernorm, "decay q/k norm weights too")
      .pretrain_only();
  optimizer.add("adam_beta1", &OptimizerConfig::adam_beta1, "first-moment decay").at_least(0).at_most(1);
  optimizer.add("adam_beta2", &OptimizerConfig::adam_beta2, "second-moment decay").at_least(0).at_most(1);
  optimizer.add("adam_epsilon", &OptimizerConfig::adam_epsilon, "added to the root of the second moment")
      .alias({"adam_eps"})
      .at_least(0);
  optimizer.add("sgd_momentum", &OptimizerConfig::sgd_momentum, "momentum of sgd")
      .at_least(0)
      .at_most(1)
      .pretrain_only();
  optimizer.add("lion_beta1", &OptimizerConfig::lion_beta1, "lion: share of the momentum in the direction")
      .at_least(0)
      .at_most(1);
  optimizer.add("lion_beta2", &OptimizerConfig::lion_beta2, "lion: decay of the momentum").at_least(0).at_most(1);
  optimizer.add("max_grad_norm", &OptimizerConfig::max_grad_norm, "clip gradients to this norm; 0: off")
      .alias({"clip_grad"})
      .at_least(0);
  optimizer
      .add("label_smoothing_factor", &OptimizerConfig::label_smoothing_factor,
           "share of each target's probability that is spread over the vocabulary; in eval_loss, too")
      .at_least(0)
      .train_only();
  optimizer
      .add("neftune_noise_alpha", &OptimizerConfig::neftune_noise_alpha,
           "noise on embeddings in training: uniform, within alpha / sqrt(tokens * hidden size)")
      .at_least(0)
      .train_only();
  // Embedding and head are trained at a rate of their own.
  optimizer.add("decoupled_lr", &OptimizerConfig::decoupled_lr, "peak rate of embedding and head")
      .at_least(0)
      .pretrain_only();
  optimizer.add("decoupled_min_lr", &OptimizerConfig::decoupled_min_lr, "smallest rate of embedding and head")
      .at_least(0)
      .pretrain_only();
}

// Muon under Megatron's names. Older releases of Megatron call muon_nesterov muon_use_nesterov.
void add_muon(OptionList& list) {
  auto muon = list.part(&TrainingArguments::muon);
  muon.add("muon_momentum", &MuonConfig::momentum, "muon: decay of the momentum").at_least(0).at_most(1);
  muon.add("muon_nesterov", &MuonConfig::nesterov, "muon: look one step ahead with the momentum")
      .alias({"muon_use_nesterov"});
  muon.add("muon_scale_mode", &MuonConfig::scale_mode,
           "muon: an update's size for a weight of out x in is the root of max(out, in), out/in or max(1, out/in)");
  muon.add("muon_extra_scale_factor", &MuonConfig::extra_scale_factor,
           "muon: factor of the update; 0.2 with spectral takes steps as large as AdamW's");
  muon.add("muon_coefficient_type", &MuonConfig::coefficient_type,
           "muon: coefficients of the Newton-Schulz iteration; simple is torch.optim.Muon's");
  muon.add("muon_num_ns_steps", &MuonConfig::num_ns_steps,
           "muon: steps of the iteration; for quintic a multiple of 5, for aol of 4, for polar_express at least 8")
      .at_least(1);
  muon.add("muon_fp32_matmul_prec", &MuonConfig::fp32_matmul_prec,
           "muon: products of the iteration in bf16 (medium) or fp32 (high)")
      .choices({"medium", "high"})
      .refuse({"low"}, "torch knows no such precision; use medium, which is bf16");
  muon.add("muon_tp_mode", &MuonConfig::tp_mode,
           "muon: with tp, orthogonalize each rank's block (blockwise), the gathered weight (duplicated), or the whole"
           " weight with products shared by the ranks (distributed)");
  muon.add("muon_split_qkv", &MuonConfig::split_qkv, "muon: query, key and value are matrices of their own")
      .negated_by({"muon_no_split_qkv"});
  muon.add("muon_scalar_optimizer", &MuonConfig::scalar_optimizer,
           "muon: the rule for embeddings, heads, norms and biases");
}

// Storage of the optimizer's state: on which ranks, on which device, in which format.
void add_state(OptionList& list) {
  auto optimizer = list.part(&TrainingArguments::optimizer);
  optimizer.add("use_distributed_optimizer", &OptimizerConfig::use_distributed_optimizer,
                "shard optimizer state over data-parallel ranks");
  optimizer
      .add("deepspeed", &OptimizerConfig::deepspeed,
           "DeepSpeed file: ZeRO stages 1 and 2 shard the optimizer, offload_optimizer moves it to the CPU")
      .train_only();
  optimizer.add("optimizer_cpu_offload", &OptimizerConfig::cpu_offload, "optimizer state and step on the host");
  optimizer
      .add("optimizer_offload_fraction", &OptimizerConfig::offload_fraction,
           "fraction of the parameters that is offloaded")
      .at_least(0)
      .at_most(1)
      .pretrain_default(1.0);
  optimizer.add(
      "use_precision_aware_optimizer", &OptimizerConfig::use_precision_aware_optimizer,
      "keep optimizer state in the formats below, and of fp32 master weights of a bf16 model only the bits that its"
      " parameters lack");
  optimizer
      .add("main_grads_dtype", &OptimizerConfig::main_grads_dtype,
           "format in which gradients are summed up and reduced; bf16 needs bf16")
      .choices({"fp32", "bf16"});
  optimizer
      .add("main_params_dtype", &OptimizerConfig::main_params_dtype,
           "format of master weights; fp16 (with scales) needs bf16 or fp16")
      .choices({"fp32", "fp16"});
  optimizer
      .add("exp_avg_dtype", &OptimizerConfig::exp_avg_dtype,
           "format of the first moment, or of the momentum of sgd; fp16 and fp8 (e4m3) with scales")
      .choices({"fp32", "fp16", "bf16", "fp8"});
  optimizer
      .add("exp_avg_sq_dtype", &OptimizerConfig::exp_avg_sq_dtype,
           "format of the second moment; fp16 and fp8 (e4m3) with scales")
      .choices({"fp32", "fp16", "bf16", "fp8"});
  optimizer.add("overlap_param_gather_with_optimizer_step", &OptimizerConfig::overlap_param_gather_with_optimizer_step,
                "gather the parameters of a chunk while the next chunk is updated; needs vpp and overlap_param_gather");
  optimizer.add("overlap_optimizer_with_forward", &OptimizerConfig::overlap_with_forward,
                "update later layers beside the next forward pass, where that is faster: large models on one GPU or in"
                " plain data parallelism");
}

// Buckets of gradients and the collectives on them. overlap_* hide communication; align_* and delay_* decide when
// pipeline stages start theirs, since a stage that reduces early delays the others.
void add_gradients(OptionList& list) {
  list.topic("Gradients");
  auto ddp = list.part(&TrainingArguments::ddp);
  ddp.add("overlap_grad_reduce", &DdpConfig::overlap_grad_reduce, "reduce a bucket as soon as it is full");
  ddp.add("delay_grad_reduce", &DdpConfig::delay_grad_reduce,
          "later stages reduce after their last backward, not during it");
  ddp.add("align_grad_reduce", &DdpConfig::align_grad_reduce, "all stages start their reduction together")
      .pretrain_only();
  ddp.add("overlap_param_gather", &DdpConfig::overlap_param_gather,
          "gather a bucket just before its forward; needs use_distributed_optimizer and overlap_grad_reduce");
  ddp.add("align_param_gather", &DdpConfig::align_param_gather, "all stages start their gather together")
      .pretrain_only()
      .no_effect("every stage starts to gather right after its update");
  ddp.add("ddp_average_in_collective", &DdpConfig::average_in_collective,
          "divide inside the collective; not with calculate_per_token_loss");
  // Larger buckets use the network better, smaller ones start earlier. The default is Megatron's, and grows with dp so
  // that the part of a bucket that each rank owns stays large.
  ddp.add("ddp_bucket_size", &DdpConfig::bucket_size,
          "elements per bucket (none: max(40 000 000, 1 000 000 * dp); on CPU 1 500 000)")
      .at_least(1);
  ddp.add("ddp_num_buckets", &DdpConfig::num_buckets, "number of buckets in place of ddp_bucket_size")
      .at_least(1)
      .pretrain_only();
  ddp.add("ddp_pad_buckets_for_high_nccl_busbw", &DdpConfig::pad_buckets_for_high_nccl_busbw,
          "bucket ends at multiples of 65536")
      .pretrain_only();
  ddp.add("check_for_nan_in_loss_and_grad", &DdpConfig::check_for_nan_in_loss_and_grad, "stop at the first NaN or Inf");
  ddp.add("calculate_per_token_loss", &DdpConfig::calculate_per_token_loss,
          "divide gradients by the tokens of the whole step");
}

}  // namespace

void add_optimizer_options(OptionList& list) {
  list.topic("Optimizer");
  add_update_rule(list);
  add_muon(list);
  add_state(list);
  add_gradients(list);
}

void add_precision_options(OptionList& list) {
  list.topic("Precision");
  auto precision = list.part(&TrainingArguments::precision);
  // The format of weights and activations. Master weights and sums are fp32 in every case.
  precision.add("bf16", &PrecisionConfig::bf16, "weights and activations in bfloat16");
  precision.add("fp16", &PrecisionConfig::fp16, "weights and activations in half precision, with loss scaling");
  precision.add("tf32", &PrecisionConfig::tf32, "fp32 products on GPUs in TF32 (none: in fp32)").train_only();
  precision.add("fp32_residual_connection", &PrecisionConfig::fp32_residual_connection,
                "residual stream, and its messages between stages, in fp32; needs bf16 or fp16");
  // fp8 products. The options about history belong to the delayed recipe, which scales by the largest values of past
  // steps; the others find the scale from the tensor itself.
  precision.add("fp8", &PrecisionConfig::fp8, "fp8 products in this format (none: off)").alias({"fp8_format"});
  precision
      .add("fp8_recipe", &PrecisionConfig::fp8_recipe,
           "how fp8 scales are found (none: tensorwise; in pretrain delayed, as Megatron)")
      .choices({"tensorwise", "delayed", "blockwise"})
      .refuse({"mxfp8"}, "it has no products here; use tensorwise, delayed or blockwise");
  precision
      .add("fp8_wgrad", &PrecisionConfig::fp8_wgrad,
           "weight gradients of fp8 layers in fp8; off: in bf16, from activations kept in bf16")
      .pretrain_only();
  precision
      .add("fp8_param", &PrecisionConfig::fp8_param,
           "keep and gather weights of fp8 products in fp8; needs fp8 and use_distributed_optimizer")
      .alias({"fp8_param_gather"});
  precision.add("fp8_head", &PrecisionConfig::fp8_head,
                "the head's products in fp8 too; needs fp8 and cross_entropy_loss_fusion");
  precision.add("fp8_experts", &PrecisionConfig::fp8_experts,
                "experts' products in fp8 too, but for their weight gradients; needs fp8");
  precision.add("fp8_amax_history_len", &PrecisionConfig::fp8_amax_history_len, "steps the delayed recipe looks back")
      .at_least(1)
      .pretrain_only();
  precision
      .add("fp8_amax_compute_algo", &PrecisionConfig::fp8_amax_compute_algo,
           "which of those steps the delayed recipe uses")
      .choices({"most_recent", "max"})
      .pretrain_only();
  precision
      .add("fp8_margin", &PrecisionConfig::fp8_margin, "the delayed recipe's scales are divided by 2 to this power")
      .pretrain_only();
  precision.add("first_last_layers_bf16", &PrecisionConfig::first_last_layers_bf16, "fp8 for inner layers only")
      .pretrain_only();
  // Loss scaling for fp16, whose gradients underflow below 6e-8: multiply the loss, divide the gradients, skip steps
  // that overflow. bf16 has the range of fp32 and needs none of it.
  precision.add("loss_scale", &PrecisionConfig::loss_scale, "fp16: constant scale (none: dynamic)")
      .at_least(0)
      .pretrain_only();
  precision.add("initial_loss_scale", &PrecisionConfig::initial_loss_scale, "dynamic scale: start")
      .at_least(0)
      .pretrain_only();
  precision.add("min_loss_scale", &PrecisionConfig::min_loss_scale, "dynamic scale: floor").at_least(0).pretrain_only();
  precision
      .add("loss_scale_window", &PrecisionConfig::loss_scale_window, "dynamic scale: clean steps before it doubles")
      .at_least(1)
      .pretrain_only();
  precision.add("hysteresis", &PrecisionConfig::hysteresis, "dynamic scale: overflows before it halves")
      .at_least(1)
      .pretrain_only();
  // The format in which gradients are summed up.
  precision
      .add("accumulate_allreduce_grads_in_fp32", &PrecisionConfig::accumulate_allreduce_grads_in_fp32,
           "gradient buffer in fp32; always so with bf16")
      .alias({"grad_reduce_in_fp32"})
      .no_effect("gradients are always summed up in fp32, unless grad_reduce_in_bf16 is set");
  precision.add("grad_reduce_in_bf16", &PrecisionConfig::grad_reduce_in_bf16, "sum gradients in bf16 instead")
      .pretrain_only();
}

void add_schedule_options(OptionList& list) {
  list.topic("Learning-rate schedule");
  auto schedule = list.part(&TrainingArguments::schedule);
  schedule
      .add("lr_scheduler_type", &ScheduleConfig::lr_scheduler_type,
           "shape of the schedule; lr_decay_style wins when set")
      .refuse({"cosine_with_restarts"}, "a rate that jumps up again is not part of Megalith; use cosine")
      .refuse({"polynomial"}, "use linear with min_lr in lr_scheduler_kwargs, which is polynomial with power 1")
      .refuse({"reduce_lr_on_plateau", "greedy"},
              "the rate follows from the step alone, not from losses; use cosine or warmup_stable_decay")
      .train_only();
  schedule
      .add(
          "lr_scheduler_kwargs", &ScheduleConfig::lr_scheduler_kwargs,
          "max_lr, min_lr, min_lr_rate, init_lr, lr_decay_steps, wsd_decay_steps (num_decay_steps), lr_wsd_decay_style")
      .train_only();
  schedule.add("warmup_steps", &ScheduleConfig::warmup_steps, "linear warm-up: steps, or below 1 a fraction of all")
      .at_least(0)
      .train_only();
  schedule
      .add("warmup_ratio", &ScheduleConfig::warmup_ratio,
           "warm-up as a fraction of all steps, only if warmup_steps is 0")
      .at_least(0)
      .at_most(1)
      .train_only();
  // Megatron's names. Lengths are given in iterations or in samples, never mixed (validate_optimizer.cc).
  schedule.add("lr_decay_style", &ScheduleConfig::lr_decay_style, "shape of the schedule")
      .pretrain_default(LrDecayStyle::kLinear)
      .pretrain_only();
  schedule.add("min_lr", &ScheduleConfig::min_lr, "smallest learning rate").at_least(0).pretrain_only();
  schedule.add("lr_decay_iters", &ScheduleConfig::lr_decay_iters, "steps to the floor (none: all)")
      .at_least(1)
      .pretrain_only();
  schedule.add("lr_decay_samples", &ScheduleConfig::lr_decay_samples, "samples to the floor")
      .at_least(1)
      .pretrain_only();
  schedule.add("lr_warmup_fraction", &ScheduleConfig::lr_warmup_fraction, "warm-up as a part of the decay length")
      .at_least(0)
      .at_most(1)
      .pretrain_only();
  schedule.add("lr_warmup_iters", &ScheduleConfig::lr_warmup_iters, "warm-up steps").at_least(0).pretrain_only();
  schedule.add("lr_warmup_samples", &ScheduleConfig::lr_warmup_samples, "warm-up samples").at_least(0).pretrain_only();
  schedule.add("lr_warmup_init", &ScheduleConfig::lr_warmup_init, "rate at step 0").at_least(0).pretrain_only();
  // Warmup-stable-decay: the rate stays at its peak and falls in the last phase only.
  schedule.add("lr_wsd_decay_style", &ScheduleConfig::lr_wsd_decay_style, "last phase of WSD").pretrain_only();
  schedule.add("lr_wsd_decay_iters", &ScheduleConfig::lr_wsd_decay_iters, "steps of the last phase of WSD")
      .at_least(1)
      .pretrain_only();
  schedule.add("lr_wsd_decay_samples", &ScheduleConfig::lr_wsd_decay_samples, "samples of the last phase of WSD")
      .at_least(1)
      .pretrain_only();
  // On resume the checkpoint's schedule must match the given one; these two say which wins if it does not.
  schedule
      .add("override_opt_param_scheduler", &ScheduleConfig::override_opt_param_scheduler,
           "on resume keep the values given here")
      .pretrain_only();
  schedule
      .add("use_checkpoint_opt_param_scheduler", &ScheduleConfig::use_checkpoint_opt_param_scheduler,
           "on resume take the checkpoint's values")
      .pretrain_only();
}

}  // namespace megalith::config
