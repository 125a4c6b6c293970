// Update rule, gradient buffers, loss scale.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "megalith/config/derive.h"
#include "megalith/optim/optimizer.h"
#include "megalith/run/resolve/optimizer_settings.h"
#include "tests/effects/effect.h"
#include "tests/effects/watched_run.h"
#include "tests/support/run_ranks.h"

namespace megalith::testing {
namespace {

using config::TrainingArguments;

// Returns a parameter after two steps. Small gradients, so that an epsilon is seen.
std::string two_steps(const optim::UpdateRule& rule) {
  optim::FlatElements one{.main = at::ones({1}), .grad = at::full({1}, 1e-6)};
  one.states.assign(rule.state_names().size(), at::Tensor());
  for (at::Tensor& state : one.states) state = at::zeros({1});
  for (const int64_t step : {1, 2}) {
    const ops::UpdateRun run{0, 1, {.lr = 0.1, .step = step}};
    rule.update_runs(one, std::span(&run, 1));
    one.grad.mul_(-3);
  }
  return fmt::format("{} {:.9g} {:.9g}", rule.name(), one.main.item<float>(), one.states.at(0).item<float>());
}

std::string rule(const TrainingArguments& args) {
  const optim::OptimizerSettings s = run::optimizer_settings(config::derive(args).args.optimizer);
  return two_steps(*s.rule);
}

// The memory of one parameter's gradient and state, and where two steps take it and its moments.
std::string steps_of_state(const TrainingArguments& given) {
  const TrainingArguments args = config::derive(given).args;
  std::string text;
  run_ranks(1, [&](const Rank& rank) {
    const parallel::ParallelContext context(rank.world, layout::RankGrid({.world_size = 1}));
    nn::ParameterSet set(args.precision.bf16 ? at::kBFloat16 : at::kFloat, at::kCPU);
    nn::Parameter& p = nn::ParameterScope(set).add({.name = "w.weight"}, {64});
    const at::NoGradGuard no_grad;
    p.value.copy_(at::arange(64, at::kFloat).sin());
    optim::DistributedDataParallel ddp({&p}, run::ddp_settings(args), context);
    optim::Optimizer optimizer({&ddp}, run::optimizer_settings(args.optimizer), context);
    for (optim::ParamGroup& group : optimizer.groups()) group.lr = 1e-2;
    optim::GradScaler scaler = optim::GradScaler::constant(1);
    for (const double factor : {1.0, 0.3}) {
      p.grad.main_grad.copy_(at::arange(64, at::kFloat).cos() * factor);
      optimizer.step(scaler);
    }
    text = fmt::format("{} + {} bytes, {} on the host", ddp.buffers()[0]->grads().nbytes(),
                       optimizer.state_bytes(false), optimizer.state_bytes(true));
    for (const parallel::ShardedTensor& part : optimizer.sharded_state())
      text += fmt::format(" {} {:.9g}", part.name, part.data().to(at::kDouble).abs().sum().item<double>());
  });
  return text;
}

// Two replicas: how their gradients meet.
std::string gradient_messages(const TrainingArguments& args) { return watch_run(args, {.dp = 2}).messages; }
std::string gradient_numbers(const TrainingArguments& args) { return watch_run(args, {.dp = 2}).numbers; }
// Three replicas: a third of each gradient rounds otherwise than a third of the sum.
std::string average_of_three(const TrainingArguments& args) { return watch_run(args, {.dp = 3}).numbers; }
// Products of backward while gradients travel.
std::string reduced_meanwhile(const TrainingArguments& args) { return watch_run(args, {.dp = 2}).products_meanwhile; }
std::string numbers_of_qwen(const TrainingArguments& args) { return watch_run(args, {.model = "qwen3"}).numbers; }
std::string optimizer_numbers(const TrainingArguments& args) { return watch_run(args).numbers; }

// After overflows, then clean steps.
std::string scales(const TrainingArguments& args) {
  optim::GradScaler scaler = run::grad_scaler(config::derive(args).args.precision);
  std::string text;
  for (const bool overflow : {true, true, true, false, false, false, false}) {
    scaler.update(overflow);
    text += fmt::format("{} ", scaler.scale());
  }
  return text;
}

}  // namespace

Effects optimizer_effects() {
  const Words aware{"--bf16", "--use_precision_aware_optimizer", "--finetuning_type=full"};
  const Words fp16{"--fp16", "--initial_loss_scale=64", "--loss_scale_window=3"};
  const Words small = small_run(), overlapped = small_run({"--overlap_grad_reduce"});
  // The first update has the direction of the gradient whatever the momentum is.
  const Words muon = small_run({"--optimizer=muon", "--max_steps=4"});
  const Words muon_tp = small_run({"--optimizer=muon", "--tp=2"});
  const Words diverging = small_run({"--learning_rate=1e30", "--max_steps=4"});
  return {
      {"optimizer", {}, {}, {"--optimizer=sgd"}, rule},
      {"deepspeed", small, {}, {R"(--deepspeed={"zero_optimization": {"stage": 2}})"}, gradient_messages},
      {"optim", {}, {}, {"--optim=sgd"}, rule},
      {"apply_wd_to_qk_layernorm",
       small_run({"--weight_decay=0.5"}),
       {},
       {"--apply_wd_to_qk_layernorm"},
       numbers_of_qwen},
      {"adam_beta1", {}, {}, {"--adam_beta1=0.8"}, rule},
      {"adam_beta2", {}, {}, {"--adam_beta2=0.95"}, rule},
      {"adam_epsilon", {}, {}, {"--adam_epsilon=1e-6"}, rule},
      {"sgd_momentum", {"--optimizer=sgd"}, {}, {"--sgd_momentum=0.5"}, rule},
      {"lion_beta1", {"--optimizer=lion"}, {}, {"--lion_beta1=0.999"}, rule},
      {"lion_beta2", {"--optimizer=lion"}, {}, {"--lion_beta2=0.9"}, rule},
      {"muon_momentum", muon, {}, {"--muon_momentum=0.5"}, optimizer_numbers},
      {"muon_nesterov", muon, {}, {"--muon_nesterov"}, optimizer_numbers},
      {"muon_scale_mode", muon, {}, {"--muon_scale_mode=shape_scaling"}, optimizer_numbers},
      {"muon_extra_scale_factor", muon, {}, {"--muon_extra_scale_factor=0.2"}, optimizer_numbers},
      {"muon_coefficient_type", muon, {}, {"--muon_coefficient_type=simple"}, optimizer_numbers},
      {"muon_num_ns_steps", muon, {}, {"--muon_num_ns_steps=10"}, optimizer_numbers},
      {"muon_fp32_matmul_prec", muon, {}, {"--muon_fp32_matmul_prec=high"}, optimizer_numbers},
      {"muon_tp_mode", muon_tp, {}, {"--muon_tp_mode=duplicated"}, optimizer_numbers},
      {"muon_split_qkv", muon, {}, {"--muon_no_split_qkv"}, optimizer_numbers},
      {"muon_scalar_optimizer", muon, {}, {"--muon_scalar_optimizer=lion"}, optimizer_numbers},
      {"max_grad_norm", small, {}, {"--max_grad_norm=0.5"}, optimizer_numbers},
      {"optimizer_cpu_offload", {"--optimizer_offload_fraction=0.5"}, {}, {"--optimizer_cpu_offload"}, steps_of_state},
      {"optimizer_offload_fraction",
       {"--optimizer_cpu_offload"},
       {"--optimizer_offload_fraction=0.5"},
       {"--optimizer_offload_fraction=1"},
       steps_of_state},
      {"use_precision_aware_optimizer", {"--bf16"}, {}, {"--use_precision_aware_optimizer"}, steps_of_state},
      {"main_grads_dtype", aware, {}, {"--main_grads_dtype=bf16"}, steps_of_state},
      {"main_params_dtype", aware, {}, {"--main_params_dtype=fp16"}, steps_of_state},
      {"exp_avg_dtype", aware, {"--exp_avg_dtype=bf16"}, {"--exp_avg_dtype=fp8"}, steps_of_state},
      {"exp_avg_sq_dtype", aware, {"--exp_avg_sq_dtype=fp16"}, {"--exp_avg_sq_dtype=fp8"}, steps_of_state},
      {"use_distributed_optimizer", small, {}, {"--use_distributed_optimizer"}, gradient_messages},
      {"overlap_grad_reduce", small_run({"--ddp_num_buckets=3"}), {}, {"--overlap_grad_reduce"}, reduced_meanwhile},
      {"ddp_average_in_collective", small, {}, {"--ddp_average_in_collective"}, average_of_three},
      {"ddp_bucket_size", overlapped, {}, {"--ddp_bucket_size=1000"}, gradient_messages},
      {"ddp_num_buckets", overlapped, {}, {"--ddp_num_buckets=3"}, gradient_messages},
      {"ddp_pad_buckets_for_high_nccl_busbw",
       {"--use_distributed_optimizer"},
       {},
       {"--ddp_pad_buckets_for_high_nccl_busbw"},
       steps_of_state},
      {"check_for_nan_in_loss_and_grad", diverging, {}, {"--check_for_nan_in_loss_and_grad=false"}, optimizer_numbers},
      {"calculate_per_token_loss", small, {}, {"--calculate_per_token_loss"}, optimizer_numbers},
      {"grad_reduce_in_bf16", small_run({"--bf16"}), {}, {"--grad_reduce_in_bf16"}, gradient_numbers},
      {"loss_scale", {"--fp16"}, {}, {"--loss_scale=8"}, scales},
      {"initial_loss_scale", {"--fp16"}, {}, {"--initial_loss_scale=64"}, scales},
      {"min_loss_scale", fp16, {}, {"--min_loss_scale=32"}, scales},
      {"loss_scale_window", {"--fp16", "--initial_loss_scale=64"}, {}, {"--loss_scale_window=2"}, scales},
      {"hysteresis", fp16, {}, {"--hysteresis=3"}, scales},
  };
}

}  // namespace megalith::testing
