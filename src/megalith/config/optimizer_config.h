// Precision, optimizer, learning-rate schedule and gradient buffers.
//
// Each member is an option: options/optimizer.cc gives its name, its range and its meaning, and docs/options.md shows
// them. Comments here add only what the help text does not say.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/enums.h"
#include "megalith/config/value.h"

namespace megalith::config {

// Number formats and loss scaling. Parameters and activations have the format of bf16 or fp16, or fp32 without either;
// the optimizer's copies are fp32, and so are sums unless grad_reduce_in_bf16 is set.
struct PrecisionConfig {
  // fp32 without any of these. bf16 and fp16 exclude each other; fp8 is for products and needs bf16.
  bool bf16 = false;
  bool fp16 = false;
  std::optional<bool> tf32;
  bool fp32_residual_connection = false;  // needs bf16 or fp16
  std::optional<Fp8Format> fp8;
  std::optional<std::string> fp8_recipe;
  bool fp8_wgrad = true;
  bool fp8_param = false;
  bool fp8_head = false;
  bool fp8_experts = false;
  // The delayed recipe: the scale of a step comes from the largest values of the steps before it.
  int fp8_amax_history_len = 1;
  std::string fp8_amax_compute_algo = "most_recent";
  int fp8_margin = 0;
  bool first_last_layers_bf16 = false;
  // Loss scaling of fp16. 2^32 is Megatron's start of the dynamic scale, which halves quickly to one that fits.
  std::optional<double> loss_scale;
  double initial_loss_scale = 4294967296.0;
  double min_loss_scale = 1.0;
  double loss_scale_window = 1000;
  int hysteresis = 2;
  // The format of gradient sums.
  bool accumulate_allreduce_grads_in_fp32 = false;
  bool grad_reduce_in_bf16 = false;
  bool operator==(const PrecisionConfig&) const = default;
};

// The update rule and where its state lives. Options of one rule are ignored by the others, as in the references.
struct OptimizerConfig {
  // The rule, by Megatron's and by Hugging Face's name; sgd in either wins.
  OptimizerKind optimizer = OptimizerKind::kAdam;
  HfOptimizer optim = HfOptimizer::kAdamwTorchFused;
  std::optional<double> learning_rate = 5e-5;
  // Decoupled weight decay (AdamW): w -= lr * wd * w, not part of the gradient.
  double weight_decay = 0.0;
  WeightDecayStyle weight_decay_incr_style = WeightDecayStyle::kConstant;
  std::optional<double> start_weight_decay;
  std::optional<double> end_weight_decay;
  bool apply_wd_to_qk_layernorm = false;
  // m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g², w -= lr * m̂ / (sqrt(v̂) + epsilon).
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double sgd_momentum = 0.9;
  // p -= lr (sign(beta1 m + (1 - beta1) g) + wd p), m = beta2 m + (1 - beta2) g.
  double lion_beta1 = 0.95;
  double lion_beta2 = 0.98;
  double max_grad_norm = 1.0;
  double label_smoothing_factor = 0.0;
  std::optional<double> neftune_noise_alpha;
  std::optional<double> decoupled_lr;
  std::optional<double> decoupled_min_lr;
  // Sharding and offloading of the state.
  bool use_distributed_optimizer = false;
  JsonObject deepspeed;
  bool cpu_offload = false;
  double offload_fraction = 0.0;
  bool use_precision_aware_optimizer = false;
  // Formats of the precision-aware optimizer; only fp32 runs.
  std::string main_grads_dtype = "fp32";
  std::string main_params_dtype = "fp32";
  std::string exp_avg_dtype = "fp32";
  std::string exp_avg_sq_dtype = "fp32";
  bool overlap_param_gather_with_optimizer_step = false;
  bool overlap_with_forward = false;  // update later layers beside the next forward pass, on CUDA
  bool operator==(const OptimizerConfig&) const = default;
};

// Muon (optim/rules/muon.h), with optimizer muon; otherwise ignored.
struct MuonConfig {
  double momentum = 0.95;
  bool nesterov = false;
  MuonScale scale_mode = MuonScale::kSpectral;
  double extra_scale_factor = 1.0;
  MuonCoefficients coefficient_type = MuonCoefficients::kQuintic;
  int num_ns_steps = 5;
  std::string fp32_matmul_prec = "medium";
  MuonTpMode tp_mode = MuonTpMode::kBlockwise;
  bool split_qkv = true;
  ScalarOptimizer scalar_optimizer = ScalarOptimizer::kAdam;
  bool operator==(const MuonConfig&) const = default;
};

// The learning rate over time, in two vocabularies. lr_decay_style wins over lr_scheduler_type, and lr_scheduler_kwargs
// over both where it has a key.
struct ScheduleConfig {
  HfScheduler lr_scheduler_type = HfScheduler::kLinear;  // Hugging Face's name
  JsonObject lr_scheduler_kwargs;
  // Hugging Face's warm-up: steps, or fractions of the run.
  double warmup_steps = 0;
  double warmup_ratio = 0;
  std::optional<LrDecayStyle> lr_decay_style;  // Megatron's name
  // Megatron's lengths, each in iterations or in samples.
  double min_lr = 0;
  std::optional<int64_t> lr_decay_iters;
  std::optional<int64_t> lr_decay_samples;
  std::optional<double> lr_warmup_fraction;
  int64_t lr_warmup_iters = 0;
  int64_t lr_warmup_samples = 0;
  double lr_warmup_init = 0;
  WsdDecayStyle lr_wsd_decay_style = WsdDecayStyle::kExponential;
  std::optional<int64_t> lr_wsd_decay_iters;
  std::optional<int64_t> lr_wsd_decay_samples;
  bool override_opt_param_scheduler = false;
  bool use_checkpoint_opt_param_scheduler = false;
  bool operator==(const ScheduleConfig&) const = default;
};

// Gradient buffers and their reduction. Parameters of a chunk lie in one flat buffer, cut into buckets that are
// reduced when all of their gradients are there (optim/distributed_data_parallel.h).
struct DdpConfig {
  // Overlap of collectives with backward and forward.
  bool overlap_grad_reduce = false;
  bool delay_grad_reduce = true;
  bool align_grad_reduce = true;
  bool overlap_param_gather = false;
  bool align_param_gather = true;
  bool average_in_collective = false;
  // Size of buckets, in elements.
  std::optional<int64_t> bucket_size;
  std::optional<int> num_buckets;
  bool pad_buckets_for_high_nccl_busbw = false;
  bool check_for_nan_in_loss_and_grad = true;
  bool calculate_per_token_loss = false;
  bool operator==(const DdpConfig&) const = default;
};

}  // namespace megalith::config
