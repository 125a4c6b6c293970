// Trainer::train: the run as nested loops.
//
//   begin_training ─► on_train_begin ─► [evaluate]
//     epoch: on_epoch_begin
//       step:  wait for the batch ─► on_step_begin ─► train_step ─► on_step_end ─► [log] [evaluate] [save]
//     on_epoch_end ─► [log] [evaluate] [save]
//   end_training: finish the save, load the best model, log the totals, on_train_end
//
// Everything that could fail because of wrong options is checked before memory for gradients is taken. The callbacks
// only set flags (TrainerControl); log_evaluate_save() acts on them at one place, in one order, so all ranks do the
// same. State advances (global_step, epoch, position_) only after train_step has returned: if a step is rejected, what
// is saved is the state before it.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/checkpoint/run_folder.h"
#include "megalith/model/adapter.h"
#include "megalith/model/families/family.h"
#include "megalith/model/pretrained.h"
#include "megalith/train/faults/replica_check.h"
#include "megalith/train/kept_state.h"
#include "megalith/train/report/intervals.h"
#include "megalith/train/saving/save_model.h"
#include "megalith/train/trainer.h"

namespace megalith::train {

namespace {

// Seconds since construction.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Counts as Hugging Face does: 6 operations per token for each parameter that is not an embedding.
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

// Tokens per row, with padding; a preference sample has two rows.
int64_t row_length(const data::MicroBatch& batch) {
  return batch.tokens() / std::max<int64_t>(1, batch.samples * (batch.preference ? 2 : 1));
}

StepOutcome outcome_of(const StepReport& report) {
  if (!report.skipped()) return StepOutcome::kUpdated;
  return std::isfinite(report.loss.sum) ? StepOutcome::kGradientsNotFinite : StepOutcome::kLossNotFinite;
}

// Enables graphs for the lifetime of the object, if the run requests them and can use them.
class RecordedRun {
 public:
  RecordedRun(bool wanted, MicrobatchRunner& runner) : runner_(runner) {
    if (wanted && runner.start_graphs()) stream_.emplace(runner.context().device());
  }
  ~RecordedRun() {
    // Waits for the stream before the graphs that it may still run are destroyed.
    stream_.reset();
    runner_.stop_graphs();
  }
  RecordedRun(const RecordedRun&) = delete;
  RecordedRun& operator=(const RecordedRun&) = delete;

 private:
  MicrobatchRunner& runner_;
  std::optional<OwnStream> stream_;
};

}  // namespace

// A failure of this rank itself says nothing good about its state, so only that of another rank lets it be kept.
TrainOutput Trainer::train() {
  try {
    return run_training();
  } catch (const comm::PeerFailure&) {
    keep_state();
    if (model_) model_->finish_update();
    throw;
  } catch (...) {
    if (model_) model_->finish_update();  // the caller may read parameters
    throw;
  }
}

// In a step before its update, or waiting for data, the state is that after the last step, and everything that the step
// called for (evaluation, save) is done.
void Trainer::keep_state() {
  if (setup_.kept == nullptr) return;
  if (!between_updates_) {
    setup_.kept->keep_nothing(
        fmt::format("rank {} was interrupted in an update, an evaluation, a save or the set-up", context_.rank()));
    return;
  }
  callbacks_.keep_records(state_);
  setup_.kept->keep(*model_, settings_.save, state_, progress());
}

TrainOutput Trainer::run_training() {
  const RecordedRun recorded(settings_.step.graphs, runner_);
  begin_training();
  const int64_t start_step = state_.global_step;
  work_ = {};
  EpochReader data = open_data();
  emit(&TrainerCallback::on_train_begin);
  const Stopwatch watch;
  if (settings_.eval.on_start && state_.global_step == 0) note_evaluation(settings_, evaluate(), state_, control_);
  const auto unfinished = [this] { return state_.global_step < state_.max_steps && !control_.should_training_stop; };
  if (epoch_end_pending_) end_epoch();  // it was saved between the last step and on_epoch_end
  while (unfinished() && data.begin_epoch()) run_epoch(data);
  if (unfinished()) log_warning("the data ended after step {} of {}", state_.global_step, state_.max_steps);
  TrainOutput output = end_training(watch.seconds());
  output.start_step = start_step;
  return output;
}

void Trainer::begin_training() {
  check<ConfigError>(setup_.train_data.has_value(), "there is no data to train on; set dataset (or data_path)");
  check<ConfigError>(model::has_adapter(models_) == settings_.trains_adapter,
                     "finetuning_type is {}, but the model has {}; create it with model::with_adapter for lora, or with"
                     " AutoModel for full",
                     settings_.trains_adapter ? "lora" : "full",
                     model::has_adapter(models_) ? "an adapter" : "no adapter");
  between_updates_ = false;
  take_newer_state();
  length_ = run_length(settings_.length, batches_, setup_.train_data->sampler);
  check_before_work();
  histogram_counter_.reset();
  counts_.reset();
  model_.reset();  // frees the memory of an earlier run first
  guard_ = std::make_unique<RerunGuard>(settings_.rerun, setup_.rejection_tracker, context_);
  skipped_steps_ = settings_.length.iterations_to_skip;
  for (const int64_t step : guard_->iterations_to_skip()) skipped_steps_.push_back(step);
  UpdateSettings update = settings_.update;
  if (setup_.update_rule) {
    update.optimizer.rule = setup_.update_rule;
    update.optimizer.muon = nullptr;
    update.gradients.matrices_apart = false;
  }
  update.overlap.enabled = update.overlap.enabled && setup_.updates_may_overlap;
  const optim::RunSchedule named = settings_.schedule(batches_, length_.max_steps);
  // From here on memory for gradients and optimizer states is taken.
  model_ = std::make_unique<OptimizedModel>(models_, update, named.with(setup_.rates), context_, &trace_);
  if (settings_.histogram_interval > 0) histogram_counter_.emplace(model_->optimizer().histogram_counter());
  guard_->watch(*model_);
  start_state();
  outcome_ = StepOutcome::kUpdated;
  history_.emplace(model_->optimizer().parameter_norm());
  state_.max_steps = length_.max_steps;
  state_.num_train_epochs = length_.num_train_epochs;
  state_.train_batch_size = batches_.micro_batch_size();
  resolve_intervals(settings_, state_);
  flops_per_token_ = flops_per_token(models_.config());
  // A resumed run continues the line that the save point interrupted.
  log_ = std::make_unique<TrainingLog>(TrainingLog::Options{.per_token = settings_.step.per_token_loss,
                                                            .nan_inf_filter = settings_.log.nan_inf_filter,
                                                            .effective_tokens = settings_.log.effective_tokens,
                                                            .loss_scale = settings_.log.loss_scale},
                                       setup_.resume ? setup_.resume->log : TrainingLog::Totals{});
  interrupted_ = false;
  saver_.require(false);
  skipped_samples_ = setup_.resume ? setup_.resume->skipped_samples : 0;
  epoch_end_pending_ = setup_.resume && setup_.resume->epoch_end_pending;
  if (settings_.save.saves_points() && context_.rank() == 0) {
    checkpoint::remove_leftovers(settings_.save.output_dir);
    if (!settings_.save.rolling.folder.empty()) checkpoint::remove_leftovers(settings_.save.rolling.folder);
  }
}

// State in the memory of ranks is newer than any save point; local save points may be newer than those of the run.
void Trainer::take_newer_state() {
  std::optional<ResumePoint> point;
  if (setup_.kept != nullptr) point = setup_.kept->take(context_);
  if (!point) point = saver_.load_local(setup_.resume ? setup_.resume->state.global_step : 0);
  if (point) setup_.resume = std::move(point);
}

// Finds mistakes that would otherwise end the run only at its first step or its first save point.
void Trainer::check_before_work() const {
  if (setup_.resume) check_same_data(*setup_.resume, setup_.train_data->sampler, settings_.resume.data_may_change);
  check_pipeline_schedule(settings_.step, batches_, setup_.resume ? setup_.resume->data.consumed_samples : 0);
  const bool evaluates = settings_.eval.strategy != config::Interval::kNo || settings_.eval.on_start;
  check<ConfigError>(!evaluates || !setup_.eval_data.empty(),
                     "eval_strategy requests evaluations, but there is no data for them; set eval_dataset or val_size");
  check<ConfigError>(!settings_.save.saves_points() || models_.config().source != nullptr,
                     "the model has no Hugging Face configuration, so its save points could not be written; set"
                     " save_strategy to no, or create the model from a config.json");
  try_collators();
  if (setup_.text_sampler) setup_.text_sampler->check(models_);
}

// Collates a first batch as a trial if the program brings its own collator or reads extra tensors.
void Trainer::try_collators() const {
  const std::vector<std::string> keys = setup_.objective->extra_keys();
  const auto wanted = [&](const data::Collator& collator) { return collator.is_own() || !keys.empty(); };
  const TrainingData& train = *setup_.train_data;
  const int64_t size = batches_.micro_batch_size();
  if (train.dataset && train.collator && wanted(*train.collator))
    check_first_batch(*train.dataset, *train.collator, size, keys);
  for (const EvalData& eval : setup_.eval_data)
    if (wanted(eval.collator)) check_first_batch(*eval.dataset, eval.collator, size, keys);
}

// Resets the state, or takes it from the save point. Weights were loaded before; restore() fills the optimizer, the
// schedule and the random streams.
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
  guard_->resume(std::exchange(state_.rerun_state, {}), "trainer_state.json");
}

// Only the first and the last stage need ids and labels; the others get by with the lengths of the sequences.
EpochReader Trainer::open_data() const {
  const auto parts = context_.is_first_stage() || context_.is_last_stage() ? data::CollateParts::kAll
                                                                           : data::CollateParts::kLayoutOnly;
  auto loader = setup_.train_data->open(shape_of_step(batches_, context_.place().dp_rank), position_, parts);
  if (context_.device().is_cuda() && context_.is_first_stage()) loader = with_pinned_media(std::move(loader));
  return {std::move(loader), !setup_.train_data->sampler};
}

void Trainer::run_epoch(EpochReader& data) {
  emit(&TrainerCallback::on_epoch_begin);
  while (true) {
    between_updates_ = true;
    const Stopwatch waiting;
    setup_.heartbeat.enter(comm::Section::kData, state_.global_step);
    const std::optional<data::StepBatch> batch = next_step(data);
    if (!batch) break;
    setup_.heartbeat.enter(comm::Section::kStep, state_.global_step);
    emit(&TrainerCallback::on_step_begin);
    run_step(*batch, waiting.seconds());
    between_updates_ = false;
    emit(&TrainerCallback::on_step_end, step_numbers());
    setup_.heartbeat.step_done(state_.global_step, waiting.seconds());
    limit_collectives();
    compare_replicas();
    record_histograms();
    record_samples(*batch);
    // A stop request ends the run after a save point, and a failure to write it must not go unnoticed.
    if (interrupted_) {
      saver_.require(true);
      control_.should_training_stop = true;
      control_.should_save = settings_.save.saves_points();
    }
    if (!log_evaluate_save()) save_rolling();
    saver_.poll();
    if (control_.should_epoch_stop || control_.should_training_stop) break;
  }
  between_updates_ = false;
  end_epoch();
}

// Compares the parameters of data-parallel replicas every check_weight_hash_interval steps.
void Trainer::compare_replicas() {
  const int64_t interval = settings_.check_weight_hash_interval;
  if (interval == 0 || state_.global_step % interval != 0) return;
  model_->finish_param_gather();
  check_replicas(models_, state_.global_step);
}

// Cleared first: a save point written below must not call on_epoch_end again when it is resumed.
void Trainer::end_epoch() {
  epoch_end_pending_ = false;
  emit(&TrainerCallback::on_epoch_end);
  log_evaluate_save();
}

// The span shows how long training waited for data; loading itself runs on another thread.
std::optional<data::StepBatch> Trainer::next_step(EpochReader& data) {
  const auto span = trace_.span({.name = "batch-generator", .lane = TraceLane::kHost, .level = 1});
  return data.next();
}

// Runs one step, or only consumes its data if it is one of the steps to skip, and advances the state.
void Trainer::run_step(const data::StepBatch& batch, double waited_seconds) {
  const int64_t number = state_.global_step + 1;
  if (std::ranges::count(skipped_steps_, number) > 0) {
    skipped_samples_ += batch.samples;
    outcome_ = StepOutcome::kLeftOut;
  } else {
    try {
      learn_from(batch, number, waited_seconds);
    } catch (const RerunExit& exit) {
      const RerunExit told = explained(exit, batch, number);
      save_for_rerun(told);
      throw told;
    }
  }
  state_.global_step = number;
  state_.epoch = length_.epoch_after(batch);
  const int64_t consumed = position_.consumed_samples;
  position_ = {batch.after, consumed + batch.samples};
  // Megatron's rule: before the batch grows, a checkpoint is written from which both sizes can continue.
  if (batches_.unchecked_at(consumed) != batches_.unchecked_at(position_.consumed_samples))
    control_.should_save = control_.should_save || settings_.save.saves_points();
  last_samples_ = batch.samples;
  epoch_end_pending_ = batch.ends_epoch;
}

// Trains on one batch and records its report. The time of a step includes the wait for its data.
void Trainer::learn_from(const data::StepBatch& batch, int64_t number, double waited_seconds) {
  const Stopwatch watch;
  const StepReport report = train_step(*model_, runner_, *guard_, batch, number, setup_.stop,
                                       {.substep_end = [this] { emit(&TrainerCallback::on_substep_end); },
                                        .pre_optimizer_step = [this] { before_update(); },
                                        .optimizer_step = [this] { emit(&TrainerCallback::on_optimizer_step); }});
  StepTiming timing{.seconds = waited_seconds + watch.seconds()};
  for (const data::MicroBatch& microbatch : batch.microbatches) timing.row_lengths += row_length(microbatch);
  log_->add(report, timing);
  if (!report.skipped())
    history_->add({.number = number,
                   .loss = report.loss.mean(),
                   .grad_norm = report.update.step.grad_norm.value_or(0),
                   .learning_rate = report.update.learning_rate});
  ++work_.steps;
  work_.samples += batch.samples;
  work_.tokens += report.real_tokens;
  work_.padding += report.tokens - report.real_tokens;
  const bool without_padding = settings_.log.tokens_seen == config::TokensSeen::kNonPadding;
  state_.num_input_tokens_seen += without_padding ? report.real_tokens : report.tokens;
  state_.total_flos += flops_per_token_ * static_cast<double>(report.tokens);
  interrupted_ = report.stop;
  clock_seconds_ = report.clock_seconds;
  outcome_ = outcome_of(report);
}

// The update overwrites parameters that a background save may still be copying.
void Trainer::before_update() {
  between_updates_ = false;
  saver_.finish_copy();
  count_values();
  emit(&TrainerCallback::on_pre_optimizer_step);
}

// The first step of a run also connects all groups, so the shorter limit applies only afterwards.
void Trainer::limit_collectives() {
  if (!settings_.collective_limit || limited_) return;
  context_.world().set_timeout(*settings_.collective_limit);
  limited_ = true;
}

// In this order, so that a save point contains the line and the result of the evaluation of its step.
bool Trainer::log_evaluate_save() {
  if (control_.should_log && log_->steps_since_line() > 0) log(training_line());
  if (control_.should_evaluate) note_evaluation(settings_, evaluate(), state_, control_);
  const bool saves = control_.should_save && !settings_.save.output_dir.empty();
  if (saves) save_point();
  return saves;
}

void Trainer::save_rolling() {
  const int64_t interval = settings_.save.rolling.interval;
  if (interval > 0 && state_.global_step % interval == 0) save_point(/*rolling=*/true);
}

// The optional numbers of Megatron's line; the parameter norm costs a pass over all parameters.
MetricList Trainer::training_line() {
  MetricList line = log_->line();
  if (settings_.log.params_norm) line.set("params_norm", model_->optimizer().parameter_norm());
  set_sample_counts(line);
  return line;
}

// The norm of the parameters is not among them: reading it would make the host wait for the device once more.
MetricList Trainer::step_numbers() const {
  MetricList numbers;
  if (outcome_ != StepOutcome::kLeftOut) numbers = log_->last_step();
  set_sample_counts(numbers);
  return numbers;
}

void Trainer::set_sample_counts(MetricList& numbers) const {
  if (!settings_.log.consumed_samples) return;
  numbers.set("consumed_samples", static_cast<double>(position_.consumed_samples));
  if (skipped_samples_ > 0) numbers.set("skipped_samples", static_cast<double>(skipped_samples_));
  numbers.set("global_batch_size", static_cast<double>(last_samples_));
}

// Parameters must have arrived, and callbacks must have put their counters into the state, before either is saved.
void Trainer::save_point(bool rolling) {
  saver_.wait_for_earlier();
  model_->finish_param_gather();
  if (const std::string flaw = flaw_of_state(); !flaw.empty()) {
    control_.should_save = false;
    return saver_.refuse(rolling, flaw);
  }
  emit(&TrainerCallback::on_save_begin, {}, saver_.folder_of(rolling));
  callbacks_.keep_records(state_);
  control_.should_save = false;
  saver_.save(*model_, progress(), rolling);
}

RunProgress Trainer::progress() const {
  RunProgress progress;
  progress.data = position_;
  if (const auto& sampler = setup_.train_data->sampler) progress.sampler = sampler->options();
  progress.log = log_->totals();
  progress.skipped_samples = skipped_samples_;
  progress.epoch_end_pending = epoch_end_pending_;
  return progress;
}

// Loads the weights only: optimizer and position stay where the run ended.
void Trainer::load_best_model() {
  if (!settings_.eval.loads_best_at_end || !state_.best_model_checkpoint) return;
  const std::filesystem::path folder = *state_.best_model_checkpoint;
  if (model::has_adapter(models_))
    model::load_adapter(models_, folder);
  else
    model::load_weights(models_, folder, model::read_pretrained_config(folder, models_.config().own_family),
                        settings_.seed);
  model_->reload_parameters();
}

// The save is finished first, so that on_save comes before on_train_end and the best model can be loaded from it.
TrainOutput Trainer::end_training(double seconds) {
  setup_.heartbeat.enter(comm::Section::kOutside, state_.global_step);
  saver_.finish();
  model_->finish_param_gather();
  load_best_model();
  const auto per_second = [seconds](int64_t count) { return static_cast<double>(count) / seconds; };
  TrainOutput output{.global_step = state_.global_step, .work = work_, .training_loss = log_->mean_loss()};
  output.interrupted = interrupted_;
  output.last_save_error = saver_.last_failure();
  output.metrics = {{"train_runtime", seconds},
                    {"train_samples_per_second", per_second(work_.samples)},
                    {"train_steps_per_second", per_second(work_.steps)},
                    {"train_tokens_per_second", per_second(work_.tokens)},
                    {"total_flos", state_.total_flos},
                    {"train_loss", output.training_loss}};
  log(output.metrics);
  emit(&TrainerCallback::on_train_end);
  return output;
}

}  // namespace megalith::train
