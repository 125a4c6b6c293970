// Precision, optimizer, learning-rate schedule and gradient buffers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/choices.h"
#include "megalith/config/value.h"

namespace megalith::config {

struct PrecisionConfig {
  bool bf16 = false;                                  // weights and activations in bfloat16
  bool fp16 = false;                                  // in half precision, with loss scaling
  std::optional<bool> tf32;                           // fp32 products on GPUs in TF32; empty: in fp32
  std::optional<Fp8Format> fp8;                       // format of fp8 products; empty: none
  std::optional<std::string> fp8_recipe;              // tensorwise, delayed, mxfp8, blockwise
  bool fp8_param = false;                             // keep parameters in fp8; needs fp8
  int fp8_amax_history_len = 1;                       // steps that the delayed recipe looks back
  std::string fp8_amax_compute_algo = "most_recent";  // or max
  int fp8_margin = 0;                                 // the delayed recipe's scales are divided by 2^margin
  bool first_last_layers_bf16 = false;                // fp8 for the layers in between only
  std::optional<double> loss_scale;                   // fp16: constant scale; empty: dynamic
  double initial_loss_scale = 4294967296.0;           // dynamic: start
  double min_loss_scale = 1.0;                        // dynamic: floor
  double loss_scale_window = 1000;                    // dynamic: clean steps before it doubles
  int hysteresis = 2;                                 // dynamic: overflows before it halves
  bool accumulate_allreduce_grads_in_fp32 = false;    // gradient buffer in fp32; always with bf16
  bool grad_reduce_in_bf16 = false;                   // the exception to that
  bool operator==(const PrecisionConfig&) const = default;
};

struct OptimizerConfig {
  OptimizerKind optimizer = OptimizerKind::kAdam;     // adam is AdamW
  HfOptimizer optim = HfOptimizer::kAdamwTorchFused;  // HF's name for it; sgd here means optimizer sgd
  std::optional<double> learning_rate = 5e-5;         // peak; required by pretrain
  double weight_decay = 0.0;                          // not on biases and norms
  WeightDecayStyle weight_decay_incr_style = WeightDecayStyle::kConstant;  // how it changes over the run
  std::optional<double> start_weight_decay;                                // with another style than constant
  std::optional<double> end_weight_decay;                                  // with another style than constant
  bool apply_wd_to_qk_layernorm = false;                                   // decay query/key norm weights too
  double adam_beta1 = 0.9;                                                 // first-moment decay
  double adam_beta2 = 0.999;                                               // second-moment decay
  double adam_epsilon = 1e-8;                                              // added to the root of the second moment
  double sgd_momentum = 0.9;                                               // for sgd
  double max_grad_norm = 1.0;                                              // clip to this global norm; 0: off
  std::optional<double> decoupled_lr;                                      // peak rate of embedding and head
  std::optional<double> decoupled_min_lr;                                  // their floor
  bool use_distributed_optimizer = false;                                  // shard its state over data-parallel ranks
  bool cpu_offload = false;                                                // state and step on the host
  double offload_fraction = 0.0;                                           // part of the parameters so treated
  bool use_precision_aware_optimizer = false;                              // state in the types below
  std::string main_grads_dtype = "fp32";                                   // or bf16
  std::string main_params_dtype = "fp32";                                  // or fp16
  std::string exp_avg_dtype = "fp32";                                      // or fp16, bf16, fp8
  std::string exp_avg_sq_dtype = "fp32";                                   // or fp16, bf16, fp8
  bool overlap_param_gather_with_optimizer_step = false;                   // interleave step and gather by chunk
  bool operator==(const OptimizerConfig&) const = default;
};

struct ScheduleConfig {
  HfScheduler lr_scheduler_type = HfScheduler::kLinear;  // HF's name; lr_decay_style wins when set
  JsonObject lr_scheduler_kwargs;                        // max_lr, min_lr, min_lr_rate, init_lr, lr_decay_steps, …
  double warmup_steps = 0;                               // >= 1 steps, < 1 a fraction of all steps
  double warmup_ratio = 0;                               // fraction, only if warmup_steps is 0
  std::optional<LrDecayStyle> lr_decay_style;            // Megatron's name
  double min_lr = 0;                                     // floor
  std::optional<int64_t> lr_decay_iters;                 // steps to the floor; empty: all
  std::optional<int64_t> lr_decay_samples;               // the same in samples
  std::optional<double> lr_warmup_fraction;              // of the decay length
  int64_t lr_warmup_iters = 0;                           // steps
  int64_t lr_warmup_samples = 0;                         // samples
  double lr_warmup_init = 0;                             // rate at step 0
  WsdDecayStyle lr_wsd_decay_style = WsdDecayStyle::kExponential;  // last phase of WSD
  std::optional<int64_t> lr_wsd_decay_iters;                       // its length in steps
  std::optional<int64_t> lr_wsd_decay_samples;                     // its length in samples
  bool override_opt_param_scheduler = false;                       // on resume keep these values
  bool use_checkpoint_opt_param_scheduler = false;                 // on resume take the checkpoint's
  bool operator==(const ScheduleConfig&) const = default;
};

struct DdpConfig {
  bool overlap_grad_reduce = false;              // reduce a bucket as soon as it is full
  bool delay_grad_reduce = true;                 // later stages sync at the end of their backward
  bool align_grad_reduce = true;                 // all stages start their reduction together
  bool overlap_param_gather = false;             // gather a bucket just before its forward
  bool align_param_gather = true;                // all stages start their gather together
  bool average_in_collective = false;            // divide inside the collective
  std::optional<int64_t> bucket_size;            // elements; empty: max(40 000 000, 1 000 000 * dp)
  std::optional<int> num_buckets;                // in place of bucket_size
  bool pad_buckets_for_high_nccl_busbw = false;  // bucket ends at multiples of 65536
  bool check_for_nan_in_loss_and_grad = true;    // stop at the first NaN or Inf
  bool calculate_per_token_loss = false;         // gradients divided by all tokens of the step
  bool operator==(const DdpConfig&) const = default;
};

}  // namespace megalith::config
