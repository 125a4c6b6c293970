// Each part of the settings has a source file of its own; this one combines them.
#include "megalith/run/resolve/run_settings.h"

#include "megalith/config/derive.h"
#include "megalith/run/resolve/data_settings.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/run/resolve/run_shape.h"
#include "megalith/run/resolve/runtime_settings.h"
#include "megalith/run/resolve/trainer_settings.h"

namespace megalith::run {

namespace {

using config::TrainingArguments;

// Returns the option as a path, if it is given.
std::optional<std::filesystem::path> folder_in(const std::optional<std::string>& option) {
  return option ? std::optional<std::filesystem::path>(*option) : std::nullopt;
}

SampleSettings sample_settings(const config::LoggingConfig& logging) {
  return {.every = logging.generate_samples_every.value_or(0),
          .max_new_tokens = logging.generate_samples_max_new_tokens,
          .prompts = config::expand_home(logging.generate_samples_prompts.value_or(""))};
}

// Returns whether an existing adapter is trained further. Its rank and targets come from its files, not from options,
// so such a run is not plannable.
bool continues_adapter(const TrainingArguments& args) {
  return trains_adapter(args) && !args.lora.adapter_name_or_path.empty() && !args.lora.create_new_adapter;
}

// Evaluations take the batch of the last training step unless they have one of their own.
int64_t eval_batch_size(const TrainingArguments& args, const layout::BatchPlan& training) {
  if (args.batch.eval_global_batch_size) return *args.batch.eval_global_batch_size;
  return layout::MicrobatchCalculator(training).final_global_batch_size();
}

// Rows of indexed data all have the length of seq_length, so nothing is padded within a row.
PretrainSettings pretrain_settings(const TrainingArguments& args, const layout::BatchPlan& batch) {
  PretrainSettings settings;
  settings.load = load_settings(args);
  settings.num_layers = args.shape.num_layers.value_or(0);
  settings.mtp_layers = args.shape.mtp_num_layers.value_or(0);
  settings.skip_train = args.run.skip_train;
  settings.eval_iters = args.eval.eval_iters;
  settings.eval_global_batch_size = eval_batch_size(args, batch);
  settings.exit_minutes = args.run.exit_duration_mins;
  settings.seq_length = args.shape.seq_length.value_or(0);
  settings.order = megatron_sampler(args.sampler, /*size=*/0, static_cast<uint64_t>(args.seeds.seed));
  settings.rows = {.padding = data::Padding::kFixed,
                   .fixed_length = settings.seq_length,
                   .cp = args.parallel.cp.value_or(1),
                   .tp = args.parallel.tp.value_or(1)};
  settings.padded_vocab_size = args.shape.padded_vocab_size.value_or(0);
  return settings;
}

}  // namespace

model::ModelSettings settings_on(model::ModelSettings settings, at::Device device) {
  settings.options = options_on(std::move(settings.options), device);
  return settings;
}

LoadSettings load_settings(const TrainingArguments& args) {
  const config::CheckpointConfig& checkpoint = args.checkpoint;
  const std::filesystem::path rolling = rolling_folder(checkpoint, args.save.load);
  return {.folder = folder_in(args.save.load),
          .pretrained = folder_in(checkpoint.pretrained_checkpoint),
          .step = checkpoint.ckpt_step,
          .counts_from = checkpoint.override_iteration,
          .weights_only = checkpoint.finetune,
          .must_exist = checkpoint.exit_on_missing_checkpoint,
          .rolling = rolling.empty() ? std::nullopt : std::optional(rolling)};
}

// Megatron's rule: a folder that is given serves both saving and loading.
std::filesystem::path rolling_folder(const config::CheckpointConfig& checkpoint,
                                     const std::optional<std::string>& run) {
  if (checkpoint.non_persistent_type != "global") return {};
  if (checkpoint.non_persistent_dir) return *checkpoint.non_persistent_dir;
  return run ? std::filesystem::path(*run) / "non_persistent" : std::filesystem::path();
}

OutputSettings output_settings(const config::SaveConfig& save) {
  return {.folder = config::expand_home(save.output_dir.value_or("")),
          .overwrites = save.overwrite_output_dir,
          .continues = save.load || save.resume_from_checkpoint.value_or("false") != "false"};
}

// Without seq_length (conversations), the planner assumes rows that are as long as the cutoff allows.
int64_t planned_length(const TrainingArguments& args) { return args.shape.seq_length.value_or(args.data.cutoff_len); }

RunSettings run_settings(const TrainingArguments& args, const RunWorld& world) {
  const layout::GridShape grid = config::grid_shape(args, world.size);
  RunSettings settings;
  settings.trains = config::trains(args.run);
  settings.evaluates = args.run.do_eval;
  settings.sequence_length = planned_length(args);
  settings.runtime = runtime_settings(args, world);
  // The device is not known before ranks exist; settings_on() moves the settings there.
  settings.model = model_settings(args, at::kCPU);
  settings.trainer = trainer_settings(args, grid);
  settings.reports = report_settings(args, grid);
  settings.samples = sample_settings(args.logging);
  settings.output = output_settings(args.save);
  settings.learns_limits = args.fault.calc_ft_timeouts;
  settings.resume = args.save.resume_from_checkpoint;
  settings.pretrain = pretrain_settings(args, settings.trainer.batch);
  settings.shape = open_shape(args, world.size);
  settings.plannable = !continues_adapter(args);
  return settings;
}

}  // namespace megalith::run
