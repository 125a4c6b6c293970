// One function for each part of the settings. What Megatron's front end does differently (the first line, the counts in
// a line, data that may grow) becomes a setting here, so that the trainer does not need to know the front end.
#include "megalith/run/resolve/trainer_settings.h"

#include <algorithm>
#include <limits>
#include <map>

#include "megalith/base/env.h"
#include "megalith/config/derive.h"
#include "megalith/config/help_and_yaml.h"
#include "megalith/run/resolve/optimizer_settings.h"
#include "megalith/run/resolve/run_settings.h"
#include "megalith/run/resolve/schedule.h"

namespace megalith::run {

namespace {

using config::Dialect;
using config::TrainingArguments;

// Zero means "not limited by this": a negative max_steps is Hugging Face's way of saying so.
train::LengthSettings length_settings(const config::RunConfig& run) {
  return {.max_steps = std::max<int64_t>(0, run.max_steps),
          .train_samples = run.train_samples.value_or(0),
          .num_train_epochs = run.num_train_epochs,
          .iterations_to_skip = run.iterations_to_skip,
          .exit_interval = run.exit_interval.value_or(0),
          .early_stopping_steps = run.early_stopping_steps.value_or(0)};
}

// Megatron logs the first iteration, the loss scale and the consumed samples in every run; Hugging Face does not.
train::LogSettings log_settings(const TrainingArguments& args) {
  const config::LoggingConfig& logging = args.logging;
  const bool megatron = args.dialect == Dialect::kPretrain;
  return {.strategy = logging.strategy,
          .steps = logging.steps,
          .first_step = logging.first_step || megatron,
          .nan_inf_filter = logging.nan_inf_filter,
          .effective_tokens = logging.include_effective_tokens_per_second,
          .params_norm = logging.log_params_norm,
          .loss_scale = args.precision.fp16 || megatron,
          .consumed_samples = megatron,
          .tokens_seen = logging.include_num_input_tokens_seen};
}

// Uses Hugging Face's defaults for options that are not given: the loss, for which less is better.
train::BestMetric best_metric(const config::EvalConfig& eval) {
  std::string name = eval.metric_for_best_model.value_or("loss");
  if (!name.starts_with("eval_")) name = "eval_" + name;
  const bool greater = eval.greater_is_better.value_or(!name.ends_with("loss"));
  return {std::move(name), greater};
}

// Evaluation falls back to the micro-batch of training, which is known to fit in memory.
train::EvalPlan eval_plan(const TrainingArguments& args) {
  const config::EvalConfig& eval = args.eval;
  return {.strategy = eval.strategy,
          .steps = eval.steps.value_or(0),
          .delay = eval.delay,
          .on_start = eval.on_start,
          .micro_batch_size = args.batch.eval_micro_batch_size.value_or(args.batch.micro_batch_size.value_or(1)),
          .best_metric = best_metric(eval),
          .tracks_best = eval.metric_for_best_model.has_value(),
          .loads_best_at_end = eval.load_best_model_at_end};
}

// A run continues from them like from its other checkpoints: when load asks for the newest.
train::LocalSaveSettings local_saves(const TrainingArguments& args) {
  const config::CheckpointConfig& checkpoint = args.checkpoint;
  if (checkpoint.non_persistent_type != "local") return {};
  return {.folder = config::expand_home(*checkpoint.non_persistent_local_dir),
          .loads = args.save.load && !checkpoint.ckpt_step && !checkpoint.finetune,
          .copies = checkpoint.replication ? checkpoint.replication_factor : 1,
          .jump = checkpoint.replication_jump.value_or(1)};
}

// `arguments` is the text of args.yaml, which goes into every checkpoint.
train::SaveSettings save_settings(const TrainingArguments& args) {
  const config::SaveConfig& save = args.save;
  return {.output_dir = save.output_dir.value_or(""),
          .strategy = save.strategy,
          .steps = save.steps.value_or(0),
          .total_limit = save.total_limit,
          .retain_interval = save.retain_interval,
          .optimizer = !save.only_model && !args.checkpoint.no_save_optim,
          .rng = !save.only_model && !args.checkpoint.no_save_rng,
          .file_per_writer = args.checkpoint.files == "per_writer",
          .in_background = args.checkpoint.async_save,
          .merged_model = save.merged_model,
          .converted_adapter = args.lora.pissa_convert,
          .sharded_optimizer = args.optimizer.use_distributed_optimizer,
          .rolling = {rolling_folder(args.checkpoint, save.output_dir),
                      args.checkpoint.non_persistent_interval.value_or(0), local_saves(args)},
          .arguments = config::to_yaml(args)};
}

// The parser accepts these three names only.
train::InjectedFault injection_of(const std::string& name) {
  if (name == "correct_result") return train::InjectedFault::kCorrectResult;
  if (name == "persistent_error") return train::InjectedFault::kPersistentError;
  return train::InjectedFault::kTransientError;
}

bool reports_to(const config::LoggingConfig& logging, const char* service) {
  return std::ranges::find(logging.report_to, service) != logging.report_to.end();
}

// Returns logging_dir, or `tensorboard` in output_dir; empty when report_to does not request the files.
std::filesystem::path tensorboard_dir(const TrainingArguments& args) {
  const config::LoggingConfig& logging = args.logging;
  if (!reports_to(logging, "tensorboard") && !reports_to(logging, "wandb") && !reports_to(logging, "all")) return {};
  if (logging.logging_dir) return *logging.logging_dir;
  if (!args.save.output_dir) return {};
  return std::filesystem::path(*args.save.output_dir) / "tensorboard";
}

// Megatron calls tensors that the checkpoint lacks unexpected, and those that the run does not ask for missing. Its
// pretrain has no use for returned names; here they are logged. Its default leaves the error to the reader, which stops
// at the first name; here it is the error of raise_unexpected.
train::KeyActions key_actions(const std::string& strictness) {
  using enum train::KeyAction;
  static const std::map<std::string, train::KeyActions> kActions{{"assume_ok_unexpected", {kFail, kIgnore}},
                                                                 {"raise_unexpected", {kFail, kIgnore}},
                                                                 {"raise_all", {kFail, kFail}},
                                                                 {"log_unexpected", {kWarn, kIgnore}},
                                                                 {"log_all", {kWarn, kWarn}},
                                                                 {"return_all", {kWarn, kWarn}},
                                                                 {"return_unexpected", {kWarn, kIgnore}},
                                                                 {"ignore_all", {kIgnore, kIgnore}}};
  return kActions.at(strictness);
}

// Returns how many micro-batches of a step may defer the weight gradient of the head; a limit of 0 means all.
int deferred_heads(const config::PipelineConfig& pipeline) {
  if (!pipeline.defer_embedding_wgrad_compute) return 0;
  return pipeline.wgrad_deferral_limit > 0 ? pipeline.wgrad_deferral_limit : std::numeric_limits<int>::max();
}

}  // namespace

bool trains_adapter(const TrainingArguments& args) { return args.run.finetuning_type == config::FinetuningType::kLora; }

// The schedule is made for one micro-batch here; the trainer sets the number of each step.
train::StepSettings step_settings(const TrainingArguments& args) {
  return {.pipeline = config::pipeline_shape(args, /*microbatches=*/1),
          .overlap_p2p_comm = args.pipeline.overlap_p2p_comm,
          .deferred_heads = deferred_heads(args.pipeline),
          .per_token_loss = args.ddp.calculate_per_token_loss,
          .graphs = args.fusion.cuda_graph_impl == "local",
          .graph_warmup_steps = args.fusion.cuda_graph_warmup_steps,
          .router_losses_by_layer = args.moe.per_layer_logging};
}

// Returns the parameters with a rate of their own, as multiples of the learning rate, by parts of their names.
std::vector<optim::LrMultiplier> rate_multipliers(const TrainingArguments& args) {
  std::vector<optim::LrMultiplier> multipliers;
  const double rate = args.optimizer.learning_rate.value_or(0);
  if (rate <= 0) return multipliers;
  // LoRA+ (Hayou et al., 2024): B learns faster than A; embeddings have a rate of their own.
  if (args.lora.loraplus_lr_ratio) {
    multipliers.push_back({"embedding.lora_b", args.lora.loraplus_lr_embedding / rate});
    multipliers.push_back({".lora_b", *args.lora.loraplus_lr_ratio});
    // As LLaMA-Factory has it: whatever is one-dimensional learns like B.
    multipliers.push_back({".lora_m", *args.lora.loraplus_lr_ratio});
  }
  // The first match counts: the merger is a part of the tower by its name, and so is the projector for sound, whose
  // norm belongs to the tower (model::FreezePlan).
  if (!args.towers.projector_lr && !args.towers.vision_tower_lr) return multipliers;
  const double projector = args.towers.projector_lr.value_or(rate) / rate;
  const double tower = args.towers.vision_tower_lr.value_or(rate) / rate;
  multipliers.push_back({"audio.projector.norm.", tower});
  multipliers.push_back({"audio.projector.", projector});
  multipliers.push_back({"vision.merger.", projector});
  if (!args.towers.vision_tower_lr) return multipliers;
  multipliers.push_back({"audio.", tower});
  multipliers.push_back({"vision.", tower});
  return multipliers;
}

// Products beside an update use other kernels than alone, so that results would depend on when a run evaluates, saves
// or resumes: not with full_determinism. MEGALITH_OVERLAP_EVERY_UPDATE=1 is for tests of the overlap itself.
train::OverlapUpdateSettings overlap_settings(const TrainingArguments& args) {
  train::OverlapUpdateSettings settings;
  const bool every = env_flag("MEGALITH_OVERLAP_EVERY_UPDATE");
  settings.enabled = args.optimizer.overlap_with_forward && (every || !args.seeds.full_determinism);
  if (every) settings.overlap = optim::OverlapSettings::always();
  return settings;
}

train::UpdateSettings update_settings(const TrainingArguments& args) {
  train::UpdateSettings settings;
  settings.optimizer = optimizer_settings(args.optimizer, args.muon);
  settings.optimizer.count_zeros = args.logging.log_num_zeros_in_grad;
  settings.optimizer.groups.multipliers = rate_multipliers(args);
  settings.gradients = ddp_settings(args);
  settings.scaler = grad_scaler(args.precision);
  settings.param_gather = args.optimizer.overlap_param_gather_with_optimizer_step ? optim::ParamGather::kDuringUpdate
                          : args.ddp.overlap_param_gather                         ? optim::ParamGather::kInForward
                                                                                  : optim::ParamGather::kInStep;
  settings.overlap = overlap_settings(args);
  return settings;
}

train::RerunSettings rerun_settings(const TrainingArguments& args) {
  return {.mode = args.fault.rerun_mode,
          .check_for_nan = args.ddp.check_for_nan_in_loss_and_grad,
          .check_for_spiky_loss = args.fault.check_for_spiky_loss,
          .check_for_large_grads = args.fault.check_for_large_grads,
          .injection_rate = args.fault.error_injection_rate,
          .injection = injection_of(args.fault.error_injection_type)};
}

train::TrainerSettings trainer_settings(const TrainingArguments& args, const layout::GridShape& grid) {
  train::TrainerSettings settings;
  settings.length = length_settings(args.run);
  settings.batch = config::batch_plan(args, grid.dp());
  settings.step = step_settings(args);
  settings.update = update_settings(args);
  // The number of steps may depend on the data, which is read later, so the trainer calls this once it is known.
  settings.schedule = [args](const layout::MicrobatchCalculator& batches, int64_t total_steps) {
    return make_schedule(args, batches, total_steps);
  };
  settings.log = log_settings(args);
  settings.eval = eval_plan(args);
  settings.save = save_settings(args);
  // Megatron resumes by consumed samples and tolerates data that has grown; Hugging Face counts batches of an epoch.
  settings.resume = {.optimizer = !args.checkpoint.no_load_optim,
                     .main_params = args.checkpoint.load_main_params,
                     .rng = !args.checkpoint.no_load_rng,
                     .restarts_epoch = args.sampler.ignore_data_skip,
                     .data_may_change = args.dialect == Dialect::kPretrain,
                     .keys = key_actions(args.checkpoint.strictness)};
  settings.rerun = rerun_settings(args);
  settings.check_weight_hash_interval = args.fault.check_weight_hash_interval.value_or(0);
  settings.histogram_interval = args.logging.log_histograms_interval.value_or(0);
  if (args.comm.timeout_after_first_iteration_s)
    settings.collective_limit = std::chrono::seconds(*args.comm.timeout_after_first_iteration_s);
  settings.trains_adapter = trains_adapter(args);
  settings.seed = static_cast<uint64_t>(args.seeds.seed);
  return settings;
}

observe::ReportSettings report_settings(const TrainingArguments& args, const layout::GridShape& grid) {
  const config::LoggingConfig& logging = args.logging;
  observe::ReportSettings settings;
  if (args.dialect == Dialect::kPretrain) settings.style = observe::ReportStyle::kMegatron;
  // An empty folder means that nothing is written.
  settings.output_dir = args.save.output_dir.value_or("");
  settings.tensorboard_dir = tensorboard_dir(args);
  settings.wandb = reports_to(logging, "wandb");
  settings.run_name = logging.run_name.value_or("");
  settings.arguments = config::to_yaml(args);
  settings.grid = grid;
  settings.best_metric = best_metric(args.eval).name;
  settings.tensorboard_log_interval = logging.tensorboard_log_interval;
  settings.timing_log_level = logging.timing_log_level;
  settings.timing_log_option = logging.timing_log_option;
  settings.log_throughput = logging.log_throughput;
  settings.log_num_zeros = logging.log_num_zeros_in_grad;
  settings.log_energy = logging.log_energy;
  settings.log_progress = logging.log_progress;
  settings.sequence_length = args.shape.seq_length.value_or(0);
  settings.text_samples = logging.generate_samples_every.has_value();
  settings.histograms = logging.log_histograms_interval.has_value();
  settings.log_straggler = args.fault.log_straggler;
  settings.straggler_count = args.fault.straggler_minmax_count;
  // Megatron gives the numbers of steps done before the first recorded one and after the last.
  if (logging.profile) settings.profile = {logging.profile_step_start + 1, logging.profile_step_end};
  settings.profile_ranks = logging.profile_ranks;
  return settings;
}

}  // namespace megalith::run
