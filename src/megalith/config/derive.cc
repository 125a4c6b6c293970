// The normalizations that the reference applies while it starts, as one pure function. Their order matters: sizes
// first, since the others read them; virtual stages before the shape of the schedule. Each function handles one subject
// and adds a warning when it overrides something the user wrote. derive(derive(args)) == derive(args), which tests
// check.
#include "megalith/config/derive.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/config/deepspeed_internal.h"

namespace megalith::config {
namespace {

using Warnings = std::vector<std::string>;

// Without --etp, experts are split like all other matrices.
void derive_sizes(TrainingArguments& args) {
  ParallelConfig& parallel = args.parallel;
  // etp follows tp, so it is filled in after the others.
  for (std::optional<int>* size : {&parallel.tp, &parallel.pp, &parallel.cp, &parallel.ep}) *size = size->value_or(1);
  parallel.etp = parallel.etp.value_or(*parallel.tp);
}

// Experts under tensor parallelism need sequence parallelism, as in the reference; without tp it has no meaning.
void derive_sequence_parallel(TrainingArguments& args, bool experts, Warnings& warnings) {
  ParallelConfig& parallel = args.parallel;
  const bool has_experts = experts || *parallel.ep > 1 || args.moe.num_experts.value_or(0) > 1;
  if (parallel.sequence_parallel && *parallel.tp <= 1) {
    parallel.sequence_parallel = false;
    warnings.emplace_back("sequence_parallel is switched off: tensor_model_parallel_size is 1");
  } else if (!parallel.sequence_parallel && *parallel.tp > 1 && has_experts) {
    parallel.sequence_parallel = true;
    warnings.emplace_back("sequence_parallel is switched on: experts with tensor_model_parallel_size > 1 need it");
  }
}

// Warns about products whose collectives stay whole.
void derive_tp_overlap(TrainingArguments& args, Warnings& warnings) {
  ParallelConfig& parallel = args.parallel;
  if (!parallel.tp_comm_overlap) return;
  if (*parallel.tp <= 1) {
    parallel.tp_comm_overlap = false;
    parallel.tp_comm_overlap_slices.reset();
    warnings.emplace_back("tp_comm_overlap is switched off: tensor_model_parallel_size is 1");
    return;
  }
  if (args.precision.fp8)
    warnings.emplace_back(
        "tp_comm_overlap hides the traffic of backward only: it does not slice products in fp8, whose scales depend on"
        " all tokens");
  if (args.dialect == Dialect::kTrain && args.run.finetuning_type == FinetuningType::kLora)
    warnings.emplace_back("tp_comm_overlap does not slice the products of weights that have an adapter");
}

// With num_layers the rules of Megatron's launcher decide; without, only a layout says how many stages there are.
void derive_virtual_stages(TrainingArguments& args) {
  PipelineConfig& pipeline = args.pipeline;
  if (args.shape.num_layers) {
    pipeline.vpp = layout::resolve_launcher_vpp(vpp_request(args)).vpp;
  } else if (pipeline.layout) {
    const int stages = layout::PipelineLayout::parse(*pipeline.layout).num_stages();
    pipeline.vpp = stages / *args.parallel.pp;
  }
  // One chunk per rank is the plain schedule; the rest of the program tests vpp for a value only.
  if (pipeline.vpp == 1) pipeline.vpp.reset();
  // Both ways of asking for virtual stages are now expressed by the one number.
  pipeline.layers_per_virtual_stage.reset();
  if (pipeline.vpp) {
    pipeline.microbatch_group_size = pipeline.microbatch_group_size.value_or(*args.parallel.pp);
    return;
  }
  // Both belong to the interleaved schedule. Resetting them keeps args.yaml free of values that mean nothing.
  pipeline.overlap_p2p_comm = false;
  args.ddp.align_param_gather = false;
}

// Brings the three ways of asking for recomputation into granularity, method and modules.
void derive_recompute(TrainingArguments& args) {
  RecomputeConfig& recompute = args.recompute;
  // An explicit granularity wins over the short forms.
  if (!recompute.granularity && recompute.gradient_checkpointing)
    recompute.granularity = RecomputeGranularity::kFull;
  else if (!recompute.granularity && recompute.recompute_activations)
    recompute.granularity = RecomputeGranularity::kSelective;
  if (recompute.granularity == RecomputeGranularity::kFull) {
    recompute.method = recompute.method.value_or(RecomputeMethod::kUniform);
    recompute.num_layers = recompute.num_layers.value_or(1);
  } else if (recompute.granularity == RecomputeGranularity::kSelective && recompute.modules.empty()) {
    recompute.modules = {"core_attn"};
  }
}

// bf16 gradients lose too much in long sums, so they accumulate in fp32 unless asked otherwise.
void derive_precision(TrainingArguments& args, Warnings& warnings) {
  PrecisionConfig& precision = args.precision;
  const bool bf16_gradients = precision.grad_reduce_in_bf16 || args.optimizer.main_grads_dtype != "fp32";
  if (precision.bf16 && !bf16_gradients) precision.accumulate_allreduce_grads_in_fp32 = true;
  if (precision.fp8) precision.fp8_recipe = fp8_recipe(args);
  if (precision.fp16 && !precision.loss_scale && args.ddp.check_for_nan_in_loss_and_grad) {
    args.ddp.check_for_nan_in_loss_and_grad = false;
    warnings.emplace_back(
        "check_for_nan_in_loss_and_grad is switched off: dynamic loss scaling handles overflows of fp16");
  }
  // From here on only `optimizer` is read.
  if (args.optimizer.optim == HfOptimizer::kSgd) args.optimizer.optimizer = OptimizerKind::kSgd;
}

// A DeepSpeed file is one more way to ask for sharded or offloaded optimizer state.
void derive_optimizer(TrainingArguments& args, Warnings& warnings) {
  OptimizerConfig& optimizer = args.optimizer;
  const DeepspeedRequest request = read_deepspeed(optimizer.deepspeed);
  if (request.shards_optimizer && !optimizer.use_distributed_optimizer) {
    optimizer.use_distributed_optimizer = true;
    warnings.emplace_back("use_distributed_optimizer is switched on: deepspeed asks for ZeRO stage 1 or 2");
  }
  if (request.offloads_optimizer && !optimizer.cpu_offload) {
    optimizer.cpu_offload = true;
    optimizer.offload_fraction = 1;
    warnings.emplace_back("optimizer_cpu_offload is switched on: deepspeed asks for offload_optimizer");
  }
}

// With many experts, router scores in bf16 become unstable, so they are computed in fp32. A negative capacity means
// none.
void derive_experts(TrainingArguments& args, Warnings& warnings) {
  constexpr int kManyExperts = 32;
  if (args.moe.num_experts.value_or(0) >= kManyExperts && !args.router.dtype) args.router.dtype = RouterDtype::kFp32;
  if (args.moe.expert_capacity_factor.value_or(0) < 0) args.moe.expert_capacity_factor.reset();
  if (args.pipeline.variable_seq_lengths && args.moe.token_dispatcher == TokenDispatcher::kAllGather) {
    args.moe.token_dispatcher = TokenDispatcher::kAllToAll;
    if (args.moe.num_experts)
      warnings.emplace_back("moe_token_dispatcher_type is alltoall: allgather cannot take variable_seq_lengths");
  }
}

// Experts that are all on one rank exchange no tokens.
void derive_expert_overlap(TrainingArguments& args, Warnings& warnings) {
  if (!args.moe.overlap_expert_parallel_comm || *args.parallel.ep * *args.parallel.etp > 1) return;
  args.moe.overlap_expert_parallel_comm = false;
  warnings.emplace_back("overlap_moe_expert_parallel_comm is switched off: expert_model_parallel_size is 1");
}

// Fills in Megatron's defaults for the shape; a checkpoint's config has them already.
void derive_shape(TrainingArguments& args) {
  ModelShapeConfig& shape = args.shape;
  if (shape.mtp_num_layers == 0) shape.mtp_num_layers.reset();
  if (shape.hidden_size && !shape.ffn_hidden_size) {
    const int full = 4 * *shape.hidden_size;
    // With a gate there are three matrices instead of two: 2/3 of the width, rounded down to a multiple of 64.
    shape.ffn_hidden_size = args.layer.swiglu.value_or(false) ? full * 2 / 3 / 64 * 64 : full;
  }
  if (!shape.num_attention_heads) return;
  if (shape.hidden_size && !shape.kv_channels) shape.kv_channels = *shape.hidden_size / *shape.num_attention_heads;
  // Megatron ignores num_query_groups without group_query_attention; Hugging Face has no such switch.
  if (!shape.num_query_groups || (args.dialect == Dialect::kPretrain && !shape.group_query_attention))
    shape.num_query_groups = shape.num_attention_heads;
}

// pretrain always trains unless told to skip it, and evaluates if it has an interval.
void derive_run(TrainingArguments& args, Warnings& warnings) {
  RunConfig& run = args.run;
  EvalConfig& eval = args.eval;
  if (args.dialect == Dialect::kPretrain) {
    run.do_train = !run.skip_train;
    if (run.skip_train) run.do_eval = true;
    if (eval.steps.value_or(0) > 0) eval.strategy = Interval::kSteps;
  }
  if (!run.do_train && !run.do_eval) {
    run.do_train = true;
    warnings.emplace_back("neither do_train nor do_eval is given: training");
  }
  // Hugging Face's rules: evaluation at intervals implies do_eval, its interval defaults to that of logging, and a
  // metric is better when greater unless its name ends in "loss".
  if (eval.strategy != Interval::kNo) run.do_eval = true;
  if (eval.strategy == Interval::kSteps && eval.steps.value_or(0) == 0) eval.steps = args.logging.steps;
  if (eval.load_best_model_at_end && !eval.metric_for_best_model) eval.metric_for_best_model = "loss";
  if (std::optional<std::string>& metric = eval.metric_for_best_model; metric) {
    if (!metric->starts_with("eval_")) metric = "eval_" + *metric;
    eval.greater_is_better = eval.greater_is_better.value_or(!metric->ends_with("loss"));
  }
  BatchConfig& batch = args.batch;
  if (!batch.eval_micro_batch_size) batch.eval_micro_batch_size = batch.micro_batch_size;
}

// Each kind of packing implies the weaker one; documents are packed by default, conversations are not.
void derive_data(TrainingArguments& args, Warnings& warnings) {
  DataConfig& data = args.data;
  if (data.sequence_packing) data.neat_packing = true;
  if (data.neat_packing) data.packing = true;
  if (!data.packing) data.packing = args.run.stage == Stage::kPretrain;
  if (args.sampler.group_by_length) args.sampler.train_sampling_strategy = SamplingStrategy::kGroupByLength;
  if (args.sampler.disable_shuffling) args.sampler.train_sampling_strategy = SamplingStrategy::kSequential;
  if (args.lora.alpha.value_or(0) == 0) args.lora.alpha = 2 * args.lora.rank;
  // Megatron's split in parts per thousand.
  IndexedDataConfig& indexed = args.indexed;
  if (!indexed.data_path.empty() && !indexed.split) {
    indexed.split = "969, 30, 1";
    warnings.emplace_back("split is \"969, 30, 1\": it was not given");
  }
}

// Expands the output folder and brings report_to into tensorboard, wandb or none.
void derive_output(TrainingArguments& args, Warnings& warnings) {
  std::optional<std::string>& output = args.save.output_dir;
  if (output) output = expand_home(*output);
  // Megatron asks for TensorBoard files by naming their folder.
  std::vector<std::string> wanted = args.logging.report_to;
  const auto named = [&wanted](const char* name) { return std::ranges::find(wanted, name) != wanted.end(); };
  if (args.dialect == Dialect::kPretrain && args.logging.logging_dir && !named("tensorboard") && !named("all"))
    wanted.emplace_back("tensorboard");
  std::vector<std::string> services;
  for (const std::string& service : wanted) {
    const std::string known = service == "all" ? "tensorboard" : service;
    if (known == "tensorboard" || known == "wandb")
      services.push_back(known);
    else if (known != "none")
      warnings.push_back(
          fmt::format("report_to {} is skipped: Megalith reports to tensorboard and to its own files", known));
  }
  args.logging.report_to = services.empty() ? std::vector<std::string>{"none"} : services;
}

}  // namespace

EffectiveArguments derive(const TrainingArguments& args, bool experts) {
  EffectiveArguments effective{args, {}};
  TrainingArguments& result = effective.args;
  Warnings& warnings = effective.warnings;
  derive_sizes(result);
  derive_sequence_parallel(result, experts, warnings);
  derive_tp_overlap(result, warnings);
  derive_virtual_stages(result);
  derive_shape(result);
  derive_recompute(result);
  derive_precision(result, warnings);
  derive_optimizer(result, warnings);
  derive_experts(result, warnings);
  derive_expert_overlap(result, warnings);
  derive_run(result, warnings);
  derive_data(result, warnings);
  derive_output(result, warnings);
  return effective;
}

// vpp takes part only in checks: it does not change the groups.
layout::GridShape grid_shape(const TrainingArguments& args, int world_size) {
  const ParallelConfig& parallel = args.parallel;
  layout::GridShape shape;
  shape.world_size = world_size;
  shape.tp = parallel.tp.value_or(1);
  shape.pp = parallel.pp.value_or(1);
  shape.cp = parallel.cp.value_or(1);
  shape.ep = parallel.ep.value_or(1);
  shape.etp = parallel.etp;
  shape.vpp = args.pipeline.vpp;
  if (parallel.use_tp_pp_dp_mapping) shape.order = "tp-cp-ep-pp-dp";
  shape.num_distributed_optimizer_instances = parallel.num_distributed_optimizer_instances;
  shape.hierarchical_cp = parallel.hierarchical_cp_sizes;
  return shape;
}

layout::SplitRequest split_request(const TrainingArguments& args) {
  check<ConfigError>(args.shape.num_layers.has_value(), "num_layers is not known; give it or a model folder");
  layout::SplitRequest request = split_request(args.pipeline);
  request.num_layers = *args.shape.num_layers;
  request.pp = args.parallel.pp.value_or(1);
  request.mtp_layers = args.shape.mtp_num_layers.value_or(0);
  return request;
}

layout::SplitRequest split_request(const PipelineConfig& pipeline) {
  layout::SplitRequest request;
  request.vpp = pipeline.vpp;
  request.first_rank_layers = pipeline.first_stage_layers;
  request.last_rank_layers = pipeline.last_stage_layers;
  request.account_for_embedding = pipeline.account_for_embedding.value_or(false);
  request.account_for_loss = pipeline.account_for_loss.value_or(false);
  if (pipeline.layout) request.layout = layout::PipelineLayout::parse(*pipeline.layout);
  request.uneven = layout::UnevenSplit::kBalance;
  return request;
}

// Copies the options under the launcher's own names, so that its rules read like the reference's.
layout::LauncherVppRequest vpp_request(const TrainingArguments& args) {
  const PipelineConfig& pipeline = args.pipeline;
  layout::LauncherVppRequest request;
  request.num_layers = args.shape.num_layers.value_or(0);
  request.pipeline_model_parallel_size = args.parallel.pp.value_or(1);
  request.num_layers_per_virtual_pipeline_stage = pipeline.layers_per_virtual_stage;
  // A layout determines the virtual size; giving the same number as well is not a contradiction.
  if (!pipeline.layout) request.num_virtual_stages_per_pipeline_rank = pipeline.vpp;
  request.pipeline_model_parallel_layout = pipeline.layout;
  request.decoder_first_pipeline_num_layers = pipeline.first_stage_layers;
  request.decoder_last_pipeline_num_layers = pipeline.last_stage_layers;
  request.account_for_embedding_in_pipeline_split = pipeline.account_for_embedding.value_or(false);
  request.account_for_loss_in_pipeline_split = pipeline.account_for_loss.value_or(false);
  request.overlap_p2p_comm = pipeline.overlap_p2p_comm;
  request.uneven = layout::UnevenSplit::kBalance;
  return request;
}

bool trains(const RunConfig& run) { return run.do_train && !run.skip_train; }

// A pipeline of one stage has no schedule to choose; evaluation has no gradients to synchronize.
layout::PipelineShape pipeline_shape(const TrainingArguments& args, int microbatches, bool forward_only) {
  const PipelineConfig& pipeline = args.pipeline;
  layout::PipelineShape shape;
  shape.pp = args.parallel.pp.value_or(1);
  shape.chunks = pipeline.vpp.value_or(1);
  shape.kind = layout::PipelineShape::kind_for(shape.pp, pipeline.vpp);
  if (pipeline.schedule && shape.pp > 1) shape.kind = *pipeline.schedule;
  shape.microbatches = microbatches;
  if (shape.kind == layout::ScheduleKind::kInterleaved) shape.group_size = pipeline.microbatch_group_size;
  shape.forward_only = forward_only;
  if (forward_only) return shape;
  shape.paired = args.moe.overlap_expert_parallel_comm;
  // delay_grad_reduce is the adapter's name for Megatron's align_grad_reduce.
  const config::DdpConfig& ddp = args.ddp;
  const bool aligned = ddp.overlap_grad_reduce && ddp.delay_grad_reduce && ddp.align_grad_reduce;
  shape.sync = aligned ? layout::PipelineSync::kAligned : layout::PipelineSync::kDefault;
  return shape;
}

// global_batch_size wins over gradient_accumulation_steps; validate() has made sure that they agree if both are given.
layout::BatchPlan batch_plan(const TrainingArguments& args, int dp) {
  const BatchConfig& batch = args.batch;
  layout::BatchPlan plan;
  plan.micro_batch_size = batch.micro_batch_size.value_or(1);
  plan.data_parallel_size = dp;
  if (!batch.rampup_batch_size.empty()) plan.rampup_batch_size = batch.rampup_batch_size;
  plan.seq_length = args.shape.seq_length;
  plan.decrease_batch_size_if_needed = batch.decrease_batch_size_if_needed;
  plan.step_batch_size_schedule = batch.step_batch_schedule;
  // validate() has made sure that global_batch_size, if given, is the size at which the schedule ends.
  if (batch.step_batch_schedule) return plan;
  plan.global_batch_size = plan.micro_batch_size * dp * batch.gradient_accumulation_steps;
  if (batch.global_batch_size) plan.global_batch_size = *batch.global_batch_size;
  return plan;
}

std::string fp8_recipe(const TrainingArguments& args) {
  return args.precision.fp8_recipe.value_or(args.dialect == Dialect::kPretrain ? "delayed" : "tensorwise");
}

// "~/runs" -> "$HOME/runs"; "~other/runs" is left alone.
std::string expand_home(const std::string& path) {
  return path == "~" || path.starts_with("~/") ? env_string("HOME").value_or("~") + path.substr(1) : path;
}

uint64_t data_seed(const TrainingArguments& args) {
  return static_cast<uint64_t>(args.seeds.data_seed.value_or(args.seeds.seed));
}

}  // namespace megalith::config
