// Rules for the optimizer, the learning-rate schedule and the gradient buffers. A run is measured in iterations or in
// samples, and all lengths of its schedule must use the same unit.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "megalith/base/text.h"
#include "megalith/config/deepspeed_internal.h"
#include "megalith/config/validate_internal.h"

namespace megalith::config {
namespace {

// The keys are those that Megalith's schedules read; others would be ignored silently.
void check_scheduler_kwargs(const TrainingArguments& args, Problems& problems) {
  const std::vector<std::string> known{"max_lr",         "min_lr",          "min_lr_rate",     "init_lr",
                                       "lr_decay_steps", "wsd_decay_steps", "num_decay_steps", "lr_wsd_decay_style"};
  const auto kwargs = nlohmann::json::parse(args.schedule.lr_scheduler_kwargs.text);
  for (const auto& [key, value] : kwargs.items()) {
    problems.require(std::ranges::find(known, key) != known.end(),
                     "lr_scheduler_kwargs has no key {} in Megalith; it takes {}", key, list_in_words(known));
    const bool wants_text = key == "lr_wsd_decay_style";
    problems.require(wants_text ? value.is_string() : value.is_number(), "lr_scheduler_kwargs: {} is {}; expected a {}",
                     key, value.dump(), wants_text ? "word" : "number");
  }
  // The decay is the point of this schedule, so its length has no default.
  const bool wsd = args.schedule.lr_scheduler_type == HfScheduler::kWsd && !args.schedule.lr_decay_style;
  problems.require(!wsd || kwargs.contains("wsd_decay_steps") || kwargs.contains("num_decay_steps"),
                   "lr_scheduler_type warmup_stable_decay needs wsd_decay_steps in lr_scheduler_kwargs, for example "
                   "'{{\"wsd_decay_steps\": 100}}'");
  // The adapter passes no style on, and stops when the last phase begins; transformers would use cosine.
  const bool has_style =
      kwargs.contains("lr_wsd_decay_style") || args.schedule.lr_wsd_decay_style != WsdDecayStyle::kExponential;
  problems.require(
      !wsd || has_style,
      "lr_scheduler_type warmup_stable_decay needs lr_wsd_decay_style, the shape of its last phase, in "
      "lr_scheduler_kwargs: exponential (Megatron's default), linear, cosine (transformers') or minus_sqrt");
}

// A ratio or fraction is measured against one length, so mixing units would be ambiguous.
void check_length_units(const TrainingArguments& args, const ValidationContext& context, Problems& problems) {
  const RunConfig& run = args.run;
  const ScheduleConfig& schedule = args.schedule;
  const bool by_iterations = run.max_steps > 0;
  const bool by_samples = run.train_samples.has_value();
  problems.require(!by_iterations || !by_samples, "train_iters and train_samples both set the length; keep one");
  if (args.dialect == Dialect::kPretrain && context.needs_inputs)
    problems.require(by_iterations || by_samples || run.skip_train,
                     "the length of the run is not given; set train_iters or train_samples");
  problems.require(!by_samples || (!schedule.lr_decay_iters && schedule.lr_warmup_iters == 0),
                   "train_samples counts in samples; use lr_decay_samples and lr_warmup_samples in place of "
                   "lr_decay_iters and lr_warmup_iters");
  problems.require(!by_iterations || (!schedule.lr_decay_samples && schedule.lr_warmup_samples == 0),
                   "train_iters counts in iterations; use lr_decay_iters and lr_warmup_iters in place of "
                   "lr_decay_samples and lr_warmup_samples");
  problems.require(!schedule.lr_warmup_fraction || (schedule.lr_warmup_iters == 0 && schedule.lr_warmup_samples == 0),
                   "lr_warmup_fraction and lr_warmup_iters (or lr_warmup_samples) both set the warm-up; keep one");
  const bool by_megatron =
      schedule.lr_warmup_fraction || schedule.lr_warmup_iters > 0 || schedule.lr_warmup_samples > 0;
  problems.require(!by_megatron || (schedule.warmup_steps == 0 && schedule.warmup_ratio == 0),
                   "warmup_steps (or warmup_ratio) and lr_warmup_fraction (or lr_warmup_iters, lr_warmup_samples) both "
                   "set the warm-up; keep one");
}

// Rules between rates and their styles; lengths are check_length_units' matter.
void check_schedule(const TrainingArguments& args, const ValidationContext& context, Problems& problems) {
  const OptimizerConfig& optimizer = args.optimizer;
  problems.require(optimizer.learning_rate.has_value() || !context.needs_inputs,
                   "lr is not given; set lr (learning_rate)");
  if (optimizer.learning_rate)
    problems.require(args.schedule.min_lr <= *optimizer.learning_rate, "min_lr {} is more than lr {}",
                     args.schedule.min_lr, *optimizer.learning_rate);
  problems.require(optimizer.label_smoothing_factor < 1, "label_smoothing_factor is {}; it must be below 1",
                   optimizer.label_smoothing_factor);
  problems.require(!optimizer.decoupled_min_lr || optimizer.decoupled_lr, "decoupled_min_lr needs decoupled_lr");
  problems.require(!args.schedule.override_opt_param_scheduler || !args.schedule.use_checkpoint_opt_param_scheduler,
                   "override_opt_param_scheduler and use_checkpoint_opt_param_scheduler exclude each other; keep one");
  problems.require(args.schedule.lr_decay_style != LrDecayStyle::kWsd || args.schedule.lr_wsd_decay_iters ||
                       args.schedule.lr_wsd_decay_samples,
                   "lr_decay_style WSD needs lr_wsd_decay_iters or lr_wsd_decay_samples");
  // Start and end are given together or not at all.
  const bool constant = optimizer.weight_decay_incr_style == WeightDecayStyle::kConstant;
  if (constant)
    problems.require(!optimizer.start_weight_decay && !optimizer.end_weight_decay,
                     "start_weight_decay and end_weight_decay need weight_decay_incr_style linear or cosine");
  else
    problems.require(optimizer.start_weight_decay && optimizer.end_weight_decay,
                     "weight_decay_incr_style other than constant needs start_weight_decay and end_weight_decay");
}

// Overlaps build on each other: gathering parameters during forward needs sharded state and overlapped reduction.
void check_overlap(const TrainingArguments& args, Problems& problems) {
  const DdpConfig& ddp = args.ddp;
  const OptimizerConfig& optimizer = args.optimizer;
  problems.require(!ddp.overlap_param_gather || (optimizer.use_distributed_optimizer && ddp.overlap_grad_reduce),
                   "overlap_param_gather needs use_distributed_optimizer and overlap_grad_reduce; set both");
  const bool interleaved = args.pipeline.vpp || args.pipeline.layers_per_virtual_stage || args.pipeline.layout;
  problems.require(!optimizer.overlap_param_gather_with_optimizer_step || (ddp.overlap_param_gather && interleaved),
                   "overlap_param_gather_with_optimizer_step needs overlap_param_gather and virtual pipeline stages");
  problems.require(
      !optimizer.overlap_param_gather_with_optimizer_step || (!optimizer.cpu_offload && !args.precision.fp8_param),
      "overlap_param_gather_with_optimizer_step works neither with optimizer_cpu_offload nor with fp8_param:"
      " their weights are complete only after the whole update; leave it out");
  problems.require(!ddp.average_in_collective || !ddp.calculate_per_token_loss,
                   "ddp_average_in_collective and calculate_per_token_loss exclude each other; keep one");
  problems.require(!ddp.bucket_size || !ddp.num_buckets,
                   "ddp_bucket_size and ddp_num_buckets both set the buckets; keep one");
}

// As in Megatron, what would have no effect is refused.
void check_residual(const PrecisionConfig& precision, Problems& problems) {
  problems.require(
      !precision.fp32_residual_connection || precision.bf16 || precision.fp16,
      "fp32_residual_connection needs bf16 or fp16: without them the whole model is in fp32; leave it out");
}

void check_deepspeed(const OptimizerConfig& optimizer, Problems& problems) {
  for (const std::string& problem : read_deepspeed(optimizer.deepspeed).problems)
    problems.require(false, "{}", problem);
}

// Low-precision optimizer state exists only in the precision-aware optimizer. Megatron also wants the distributed
// optimizer and Adam; here it works without. A format that would change nothing is refused.
void check_state(const TrainingArguments& args, Problems& problems) {
  const OptimizerConfig& optimizer = args.optimizer;
  const PrecisionConfig& precision = args.precision;
  const std::string_view rule =
      optimizer.optim == HfOptimizer::kSgd ? choice_name(OptimizerKind::kSgd) : choice_name(optimizer.optimizer);
  const bool adam = rule == choice_name(OptimizerKind::kAdam) || (optimizer.optimizer == OptimizerKind::kMuon &&
                                                                  args.muon.scalar_optimizer == ScalarOptimizer::kAdam);
  const bool bf16_grads = optimizer.main_grads_dtype != "fp32", fp16_main = optimizer.main_params_dtype != "fp32";
  const bool adapter = args.dialect == Dialect::kTrain && args.run.finetuning_type == FinetuningType::kLora;
  problems.require(adam || optimizer.exp_avg_sq_dtype == "fp32",
                   "exp_avg_sq_dtype is {}, but {} has no second moment; leave it out, or use optimizer adam",
                   optimizer.exp_avg_sq_dtype, rule);
  problems.require(!fp16_main || precision.bf16 || precision.fp16,
                   "main_params_dtype fp16 needs bf16 or fp16: the parameters of an fp32 model are their own master"
                   " weights");
  problems.require(!bf16_grads || precision.bf16, "main_grads_dtype bf16 needs bf16");
  problems.require(!bf16_grads || !precision.accumulate_allreduce_grads_in_fp32,
                   "main_grads_dtype bf16 and accumulate_allreduce_grads_in_fp32 exclude each other; keep one");
  problems.require(
      !adapter || (!fp16_main && !bf16_grads),
      "adapters are trained in fp32 with fp32 gradients; leave out main_params_dtype and main_grads_dtype, or set"
      " finetuning_type full");
  const bool formats = optimizer.main_grads_dtype != "fp32" || optimizer.main_params_dtype != "fp32" ||
                       optimizer.exp_avg_dtype != "fp32" || optimizer.exp_avg_sq_dtype != "fp32";
  problems.require(!formats || optimizer.use_precision_aware_optimizer,
                   "main_grads_dtype, main_params_dtype, exp_avg_dtype and exp_avg_sq_dtype other than fp32 need "
                   "use_precision_aware_optimizer");
  problems.require(!optimizer.cpu_offload || args.dialect == Dialect::kTrain || optimizer.use_precision_aware_optimizer,
                   "optimizer_cpu_offload needs use_precision_aware_optimizer");
}

// Muon needs whole weight matrices on the device. The rules about its numbers are optim::Muon's (problems()).
void check_rule(const TrainingArguments& args, Problems& problems) {
  const OptimizerConfig& optimizer = args.optimizer;
  const bool named = optimizer.optimizer == OptimizerKind::kMuon || optimizer.optimizer == OptimizerKind::kLion;
  problems.require(!named || optimizer.optim != HfOptimizer::kSgd,
                   "optimizer {} and optim sgd name different rules; leave one of them out",
                   choice_name(optimizer.optimizer));
  if (optimizer.optimizer != OptimizerKind::kMuon) return;
  const bool adapter = args.dialect == Dialect::kTrain && args.run.finetuning_type == FinetuningType::kLora;
  problems.require(!adapter,
                   "optimizer muon orthogonalizes the updates of whole weights, and finetuning_type lora trains the"
                   " factors of an update; use optimizer adam, or finetuning_type full");
  const bool offloads = optimizer.cpu_offload || read_deepspeed(optimizer.deepspeed).offloads_optimizer;
  problems.require(!offloads,
                   "optimizer muon works with whole matrices on the device, so optimizer_cpu_offload cannot move its"
                   " state to the host; leave it out, or use optimizer adam");
}

}  // namespace

void check_optimizer(const TrainingArguments& args, const ValidationContext& context, Problems& problems) {
  check_length_units(args, context, problems);
  check_schedule(args, context, problems);
  check_scheduler_kwargs(args, problems);
  check_overlap(args, problems);
  check_state(args, problems);
  check_residual(args.precision, problems);
  check_rule(args, problems);
  check_deepspeed(args.optimizer, problems);
}

}  // namespace megalith::config
