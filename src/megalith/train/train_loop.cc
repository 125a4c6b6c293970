// Trainer::train: a run as a list of epochs, steps, lines, evaluations and save points.
#include <algorithm>
#include <chrono>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/model/families/family.h"
#include "megalith/model/pretrained.h"
#include "megalith/train/flow_callback.h"
#include "megalith/train/save_model.h"
#include "megalith/train/trainer.h"

namespace megalith::train {

namespace {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// As Hugging Face counts: 6 operations for each parameter that is no embedding.
double flops_per_token(const model::ModelConfig& config) {
  double parameters = 0;
  for (const hf::GlobalTensor& tensor : model::global_tensors(config)) {
    if (tensor.name == "embedding.weight" || tensor.name == "position_embedding.weight") continue;
    double elements = 1;
    for (const int64_t size : tensor.shape) elements *= static_cast<double>(size);
    parameters += elements;
  }
  return 6 * parameters;
}

int64_t row_length(const data::MicroBatch& batch) {
  return batch.tokens() / std::max<int64_t>(1, batch.samples * (batch.preference ? 2 : 1));
}

}  // namespace

void check_can_train(const config::RunConfig& run) {
  check<ConfigError>(run.finetuning_type == config::FinetuningType::kFull,
                     "finetuning_type is lora (the default of train), and adapters are not built yet; set"
                     " finetuning_type full to train every weight");
}

TrainOutput Trainer::train() {
  begin_training();
  EpochReader data = open_data();
  emit(&TrainerCallback::on_train_begin);
  const Stopwatch watch;
  if (args_.eval.on_start) note_evaluation(args_, evaluate(), state_, control_);
  const auto unfinished = [this] { return state_.global_step < state_.max_steps && !control_.should_training_stop; };
  while (unfinished() && data.begin_epoch()) run_epoch(data);
  if (unfinished()) log_warning("the data has ended after step {} of {}", state_.global_step, state_.max_steps);
  return end_training(watch.seconds());
}

void Trainer::begin_training() {
  check<ConfigError>(setup_.train_data.has_value(), "there is no data to train on; set dataset (or data_path)");
  check_can_train(args_.run);
  length_ = run_length(args_.run, batches_, setup_.train_data->sampler);
  check_before_work();
  model_.reset();  // of an earlier run: its memory
  model_ = std::make_unique<OptimizedModel>(models_, args_, optim::make_schedule(args_, batches_, length_.max_steps),
                                            context_);
  start_state();
  state_.max_steps = length_.max_steps;
  state_.num_train_epochs = length_.num_train_epochs;
  state_.train_batch_size = batches_.micro_batch_size();
  resolve_intervals(args_, state_);
  flops_per_token_ = flops_per_token(models_.config());
  log_ = std::make_unique<TrainingLog>(
      TrainingLog::Options{.per_token = args_.ddp.calculate_per_token_loss,
                           .nan_inf_filter = args_.logging.nan_inf_filter,
                           .loss_scale = args_.precision.fp16 || args_.dialect == config::Dialect::kPretrain});
  interrupted_ = false;
  skipped_samples_ = 0;
}

// What would otherwise end the run at its first step or its first save point.
void Trainer::check_before_work() const {
  const int64_t consumed = setup_.resume ? setup_.resume->data.consumed_samples : 0;
  const int64_t each = batches_.micro_batch_size() * batches_.data_parallel_size();
  runner_.check_schedule(shape_of_step(batches_, context_.place().dp_rank)(consumed).num_microbatches);
  runner_.check_schedule(batches_.final_global_batch_size() / each);
  const bool evaluates = args_.eval.strategy != config::Interval::kNo || args_.eval.on_start;
  check<ConfigError>(!evaluates || !setup_.eval_data.empty(),
                     "eval_strategy asks for evaluations, and there is no data for them; set eval_dataset or val_size");
  check<ConfigError>(!saves() || models_.config().source != nullptr,
                     "the model has no Hugging Face configuration, so that its save points could not be written; set"
                     " save_strategy to no, or make the model from a config.json");
}

void Trainer::start_state() {
  TrainerState fresh;
  if (setup_.resume) fresh = setup_.resume->state;
  fresh.is_local_process_zero = state_.is_local_process_zero;
  fresh.is_world_process_zero = state_.is_world_process_zero;
  state_ = std::move(fresh);
  position_ = setup_.resume ? setup_.resume->data : data::LoaderStart{};
  if (!setup_.resume) return;
  setup_.resume->restore(*model_);
  model_->apply_rates();
  callbacks_.restore_records(state_);
}

EpochReader Trainer::open_data() const {
  const auto parts = context_.is_first_stage() || context_.is_last_stage() ? data::CollateParts::kAll
                                                                           : data::CollateParts::kLayoutOnly;
  return {setup_.train_data->open(shape_of_step(batches_, context_.place().dp_rank), position_, parts),
          !setup_.train_data->sampler};
}

void Trainer::run_epoch(EpochReader& data) {
  emit(&TrainerCallback::on_epoch_begin);
  while (true) {
    const Stopwatch waiting;
    const std::optional<data::StepBatch> batch = next_step(data);
    if (!batch) break;
    emit(&TrainerCallback::on_step_begin);
    run_step(*batch, waiting.seconds());
    emit(&TrainerCallback::on_step_end);
    if (interrupted_) {
      control_.should_training_stop = true;
      control_.should_save = saves();
    }
    log_evaluate_save();
    if (control_.should_epoch_stop || control_.should_training_stop) break;
  }
  emit(&TrainerCallback::on_epoch_end);
  log_evaluate_save();
}

std::optional<data::StepBatch> Trainer::next_step(EpochReader& data) {
  const auto span = trace_.span({.name = "batch-generator", .lane = TraceLane::kHost, .level = 1});
  return data.next();
}

void Trainer::run_step(const data::StepBatch& batch, double waited_seconds) {
  const int64_t number = state_.global_step + 1;
  if (std::ranges::count(args_.run.iterations_to_skip, number) > 0)
    skipped_samples_ += batch.samples;
  else
    learn_from(batch, number, waited_seconds);
  state_.global_step = number;
  state_.epoch = length_.epoch_after(batch);
  position_ = {batch.after, position_.consumed_samples + batch.samples};
  last_samples_ = batch.samples;
}

void Trainer::learn_from(const data::StepBatch& batch, int64_t number, double waited_seconds) {
  const Stopwatch watch;
  const StepReport report = train_step(*model_, runner_, batch, number, setup_.stop,
                                       {.substep_end = [this] { emit(&TrainerCallback::on_substep_end); },
                                        .pre_optimizer_step = [this] { emit(&TrainerCallback::on_pre_optimizer_step); },
                                        .optimizer_step = [this] { emit(&TrainerCallback::on_optimizer_step); }});
  StepTiming timing{.seconds = waited_seconds + watch.seconds()};
  for (const data::MicroBatch& each : batch.microbatches) timing.row_lengths += row_length(each);
  log_->add(report, timing);
  const bool without_padding = args_.logging.include_num_input_tokens_seen == config::TokensSeen::kNonPadding;
  state_.num_input_tokens_seen += without_padding ? report.real_tokens : report.tokens;
  state_.total_flos += flops_per_token_ * static_cast<double>(report.tokens);
  interrupted_ = report.stop;
}

void Trainer::log_evaluate_save() {
  if (control_.should_log && log_->steps_since_line() > 0) log(training_line());
  if (control_.should_evaluate) note_evaluation(args_, evaluate(), state_, control_);
  if (control_.should_save && args_.save.output_dir) save_point();
}

MetricList Trainer::training_line() {
  MetricList line = log_->line();
  if (args_.dialect != config::Dialect::kPretrain) return line;
  line.set("consumed_samples", static_cast<double>(position_.consumed_samples));
  if (skipped_samples_ > 0) line.set("skipped_samples", static_cast<double>(skipped_samples_));
  line.set("global_batch_size", static_cast<double>(last_samples_));
  return line;
}

void Trainer::save_point() {
  const std::filesystem::path folder =
      std::filesystem::path(*args_.save.output_dir) / fmt::format("checkpoint-{}", state_.global_step);
  const auto span = trace_.span({.name = "save-checkpoint", .lane = TraceLane::kHost, .level = 0});
  model_->finish_param_gather();
  callbacks_.keep_records(state_);
  if (state_.best_global_step == state_.global_step) state_.best_model_checkpoint = folder.string();
  save_checkpoint_folder(models_, args_, state_, folder, setup_.assets);
  emit(&TrainerCallback::on_save, {}, folder);
}

void Trainer::load_best_model() {
  if (!args_.eval.load_best_model_at_end || !state_.best_model_checkpoint) return;
  const std::filesystem::path folder = *state_.best_model_checkpoint;
  model::load_weights(models_, folder, model::read_pretrained_config(folder), static_cast<uint64_t>(args_.seeds.seed));
  model_->reload_parameters();
}

TrainOutput Trainer::end_training(double seconds) {
  model_->finish_param_gather();
  load_best_model();
  const auto steps = static_cast<double>(state_.global_step);
  TrainOutput output{.global_step = state_.global_step, .training_loss = log_->mean_loss(), .metrics = {}};
  output.interrupted = interrupted_;
  output.metrics = {{"train_runtime", seconds},
                    {"train_samples_per_second", static_cast<double>(position_.consumed_samples) / seconds},
                    {"train_steps_per_second", steps / seconds},
                    {"total_flos", state_.total_flos},
                    {"train_loss", output.training_loss}};
  log(output.metrics);
  emit(&TrainerCallback::on_train_end);
  return output;
}

}  // namespace megalith::train
