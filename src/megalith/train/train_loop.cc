// Trainer::train: a run as a list of epochs, steps, lines, evaluations and save points.
#include <algorithm>
#include <chrono>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/checkpoint/run_folder.h"
#include "megalith/model/adapter.h"
#include "megalith/model/families/family.h"
#include "megalith/model/pretrained.h"
#include "megalith/train/faults/replica_check.h"
#include "megalith/train/report/flow_callback.h"
#include "megalith/train/saving/save_model.h"
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

// Micro-batches are recorded while it lives, where the run asks for that and can.
class RecordedRun {
 public:
  RecordedRun(const config::TrainingArguments& args, MicrobatchRunner& runner) : runner_(runner) {
    if (graphs_wanted(args) && runner.start_graphs()) stream_.emplace(runner.context().device());
  }
  ~RecordedRun() {
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

TrainOutput Trainer::train() {
  const RecordedRun recorded(args_, runner_);
  begin_training();
  EpochReader data = open_data();
  emit(&TrainerCallback::on_train_begin);
  const Stopwatch watch;
  if (args_.eval.on_start && state_.global_step == 0) note_evaluation(args_, evaluate(), state_, control_);
  const auto unfinished = [this] { return state_.global_step < state_.max_steps && !control_.should_training_stop; };
  if (epoch_end_pending_) end_epoch();
  while (unfinished() && data.begin_epoch()) run_epoch(data);
  if (unfinished()) log_warning("the data has ended after step {} of {}", state_.global_step, state_.max_steps);
  return end_training(watch.seconds());
}

void Trainer::begin_training() {
  check<ConfigError>(setup_.train_data.has_value(), "there is no data to train on; set dataset (or data_path)");
  check<ConfigError>(model::has_adapter(models_) == (args_.run.finetuning_type == config::FinetuningType::kLora),
                     "finetuning_type is {}, and the model has {}; make it with model::with_adapter for lora, with"
                     " AutoModel for full",
                     config::choice_name(args_.run.finetuning_type),
                     model::has_adapter(models_) ? "an adapter" : "no adapter");
  length_ = run_length(args_.run, batches_, setup_.train_data->sampler);
  check_before_work();
  model_.reset();  // of an earlier run: its memory
  guard_ = std::make_unique<RerunGuard>(args_, setup_.rejection_tracker, context_);
  skipped_steps_ = args_.run.iterations_to_skip;
  for (const int64_t step : guard_->iterations_to_skip()) skipped_steps_.push_back(step);
  model_ = std::make_unique<OptimizedModel>(models_, args_, optim::make_schedule(args_, batches_, length_.max_steps),
                                            context_);
  guard_->watch(*model_);
  start_state();
  state_.max_steps = length_.max_steps;
  state_.num_train_epochs = length_.num_train_epochs;
  state_.train_batch_size = batches_.micro_batch_size();
  resolve_intervals(args_, state_);
  flops_per_token_ = flops_per_token(models_.config());
  log_ = std::make_unique<TrainingLog>(
      TrainingLog::Options{.per_token = args_.ddp.calculate_per_token_loss,
                           .nan_inf_filter = args_.logging.nan_inf_filter,
                           .effective_tokens = args_.logging.include_effective_tokens_per_second,
                           .loss_scale = args_.precision.fp16 || args_.dialect == config::Dialect::kPretrain},
      setup_.resume ? setup_.resume->log : TrainingLog::Totals{});
  interrupted_ = false;
  skipped_samples_ = setup_.resume ? setup_.resume->skipped_samples : 0;
  epoch_end_pending_ = setup_.resume && setup_.resume->epoch_end_pending;
  if (saves() && context_.rank() == 0) checkpoint::remove_leftovers(*args_.save.output_dir);
}

// What would otherwise end the run at its first step or its first save point.
void Trainer::check_before_work() const {
  if (setup_.resume) check_same_data(*setup_.resume, setup_.train_data->sampler, args_);
  check_pipeline_schedule(args_, batches_, setup_.resume ? setup_.resume->data.consumed_samples : 0);
  const bool evaluates = args_.eval.strategy != config::Interval::kNo || args_.eval.on_start;
  check<ConfigError>(!evaluates || !setup_.eval_data.empty(),
                     "eval_strategy asks for evaluations, and there is no data for them; set eval_dataset or val_size");
  check<ConfigError>(!saves() || models_.config().source != nullptr,
                     "the model has no Hugging Face configuration, so that its save points could not be written; set"
                     " save_strategy to no, or make the model from a config.json");
  try_collators();
}

// A trial where the program brings a collator, or reads extra tensors.
void Trainer::try_collators() const {
  const std::vector<std::string> keys = setup_.objective->extra_keys();
  const auto wanted = [&](const data::Collator& collator) { return collator.is_own() || !keys.empty(); };
  const TrainingData& train = *setup_.train_data;
  const int64_t size = batches_.micro_batch_size();
  if (train.dataset && train.collator && wanted(*train.collator))
    check_first_batch(*train.dataset, *train.collator, size, keys);
  for (const EvalData& each : setup_.eval_data)
    if (wanted(each.collator)) check_first_batch(*each.dataset, each.collator, size, keys);
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
  guard_->resume(std::exchange(state_.rerun_state, {}), "trainer_state.json");
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
    setup_.heartbeat.enter(comm::Section::kData, state_.global_step);
    const std::optional<data::StepBatch> batch = next_step(data);
    if (!batch) break;
    setup_.heartbeat.enter(comm::Section::kStep, state_.global_step);
    emit(&TrainerCallback::on_step_begin);
    run_step(*batch, waiting.seconds());
    emit(&TrainerCallback::on_step_end);
    setup_.heartbeat.step_done(state_.global_step, waiting.seconds());
    limit_collectives();
    compare_replicas();
    if (interrupted_) {
      control_.should_training_stop = true;
      control_.should_save = saves();
    }
    log_evaluate_save();
    if (saver_.busy()) end_save(/*wait=*/false);
    if (control_.should_epoch_stop || control_.should_training_stop) break;
  }
  end_epoch();
}

void Trainer::compare_replicas() {
  const auto interval = args_.fault.check_weight_hash_interval;
  if (!interval || state_.global_step % *interval != 0) return;
  model_->finish_param_gather();
  check_replicas(models_, state_.global_step);
}

void Trainer::end_epoch() {
  epoch_end_pending_ = false;
  emit(&TrainerCallback::on_epoch_end);
  log_evaluate_save();
}

std::optional<data::StepBatch> Trainer::next_step(EpochReader& data) {
  const auto span = trace_.span({.name = "batch-generator", .lane = TraceLane::kHost, .level = 1});
  return data.next();
}

void Trainer::run_step(const data::StepBatch& batch, double waited_seconds) {
  const int64_t number = state_.global_step + 1;
  if (std::ranges::count(skipped_steps_, number) > 0)
    skipped_samples_ += batch.samples;
  else
    try {
      learn_from(batch, number, waited_seconds);
    } catch (const RerunExit& exit) {
      save_for_rerun(exit);
      throw;
    }
  state_.global_step = number;
  state_.epoch = length_.epoch_after(batch);
  position_ = {batch.after, position_.consumed_samples + batch.samples};
  last_samples_ = batch.samples;
  epoch_end_pending_ = batch.ends_epoch;
}

void Trainer::learn_from(const data::StepBatch& batch, int64_t number, double waited_seconds) {
  const Stopwatch watch;
  const StepReport report = train_step(*model_, runner_, *guard_, batch, number, setup_.stop,
                                       {.substep_end = [this] { emit(&TrainerCallback::on_substep_end); },
                                        .pre_optimizer_step = [this] { before_update(); },
                                        .optimizer_step = [this] { emit(&TrainerCallback::on_optimizer_step); }});
  StepTiming timing{.seconds = waited_seconds + watch.seconds()};
  for (const data::MicroBatch& each : batch.microbatches) timing.row_lengths += row_length(each);
  log_->add(report, timing);
  const bool without_padding = args_.logging.include_num_input_tokens_seen == config::TokensSeen::kNonPadding;
  state_.num_input_tokens_seen += without_padding ? report.real_tokens : report.tokens;
  state_.total_flos += flops_per_token_ * static_cast<double>(report.tokens);
  interrupted_ = report.stop;
  clock_seconds_ = report.clock_seconds;
}

void Trainer::before_update() {
  saver_.finish_copy();
  emit(&TrainerCallback::on_pre_optimizer_step);
}

// The step was not taken: parameters, random streams and data stand where it began, and so does what is saved.
void Trainer::save_for_rerun(const RerunExit& exit) {
  if (!exit.facts().save || !args_.save.output_dir) return;
  state_.rerun_state = exit.facts().state;
  must_save_ = true;
  save_point();
  if (saver_.busy()) end_save(/*wait=*/true);
}

// The first step of a run includes the connections of all groups; later ones have to be quicker.
void Trainer::limit_collectives() {
  if (!args_.comm.timeout_after_first_iteration_s || limited_) return;
  context_.world().set_timeout(std::chrono::seconds(*args_.comm.timeout_after_first_iteration_s));
  limited_ = true;
}

void Trainer::log_evaluate_save() {
  if (control_.should_log && log_->steps_since_line() > 0) log(training_line());
  if (control_.should_evaluate) note_evaluation(args_, evaluate(), state_, control_);
  if (control_.should_save && args_.save.output_dir) save_point();
}

MetricList Trainer::training_line() {
  MetricList line = log_->line();
  if (args_.logging.log_params_norm) line.set("params_norm", model_->optimizer().parameter_norm());
  if (args_.dialect != config::Dialect::kPretrain) return line;
  line.set("consumed_samples", static_cast<double>(position_.consumed_samples));
  if (skipped_samples_ > 0) line.set("skipped_samples", static_cast<double>(skipped_samples_));
  line.set("global_batch_size", static_cast<double>(last_samples_));
  return line;
}

void Trainer::save_point() {
  const std::filesystem::path folder =
      std::filesystem::path(*args_.save.output_dir) / checkpoint::folder_name(state_.global_step);
  setup_.heartbeat.enter(comm::Section::kCheckpointing, state_.global_step);
  const auto span = trace_.span({.name = "save-checkpoint", .lane = TraceLane::kHost, .level = 0});
  if (saver_.busy()) {
    if (context_.rank() == 0) log_warning("a save is still going on: step {} waits for it", state_.global_step);
    end_save(/*wait=*/true);
  }
  model_->finish_param_gather();
  callbacks_.keep_records(state_);
  saving_ = folder;
  if (state_.best_global_step == state_.global_step) state_.best_model_checkpoint = folder.string();
  checkpoint::SaveRequest request = save_request(
      *model_, {.folder = folder, .args = args_, .state = state_, .progress = progress(), .assets = setup_.assets});
  control_.should_save = false;
  guard_save([&] {
    if (args_.checkpoint.async_save)
      saver_.start(std::move(request));
    else
      saved(saver_.save(std::move(request)));
  });
  setup_.heartbeat.enter(comm::Section::kOutside, state_.global_step);
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

// Of a save in the background: when it is complete, or, to wait for, in any case.
void Trainer::end_save(bool wait) {
  if (wait) setup_.heartbeat.enter(comm::Section::kCheckpointing, state_.global_step);
  const auto span = trace_.span({.name = "save-checkpoint-finalize", .lane = TraceLane::kHost, .level = 0});
  guard_save([&] {
    if (wait)
      saved(saver_.wait());
    else if (const auto report = saver_.poll())
      saved(*report);
  });
}

// A save that fails costs a checkpoint, not the run: nothing older was touched, and all ranks know of it. Only where a
// run ends for it (a signal, a rerun elsewhere) there is nothing to go on with.
void Trainer::guard_save(const std::function<void()>& save) {
  try {
    save();
  } catch (const DataError& error) {
    if (interrupted_ || must_save_) throw;
    if (context_.rank() == 0) log_text(LogLevel::kError, fmt::format("{}; training goes on without it", error.what()));
    if (state_.best_model_checkpoint == saving_.string()) state_.best_model_checkpoint.reset();
  }
}

void Trainer::saved(const checkpoint::SaveReport& report) {
  if (context_.rank() == 0) {
    log_info("saved {}: {:.1f} MB in {:.2f} s, of which training waited {:.2f} s", report.folder.string(),
             static_cast<double>(report.bytes) / 1e6, report.total_seconds, report.stalled_seconds);
    checkpoint::Retention keep{.total_limit = args_.save.total_limit, .retain_interval = args_.save.retain_interval};
    if (state_.best_model_checkpoint) keep.best = *state_.best_model_checkpoint;
    for (const std::string& problem : checkpoint::rotate(report.folder.parent_path(), keep)) log_warning("{}", problem);
  }
  emit(&TrainerCallback::on_save, {}, report.folder);
}

void Trainer::load_best_model() {
  if (!args_.eval.load_best_model_at_end || !state_.best_model_checkpoint) return;
  const std::filesystem::path folder = *state_.best_model_checkpoint;
  if (model::has_adapter(models_))
    model::load_adapter(models_, folder);
  else
    model::load_weights(models_, folder, model::read_pretrained_config(folder, models_.config().own_family),
                        static_cast<uint64_t>(args_.seeds.seed));
  model_->reload_parameters();
}

TrainOutput Trainer::end_training(double seconds) {
  setup_.heartbeat.enter(comm::Section::kOutside, state_.global_step);
  if (saver_.busy()) end_save(/*wait=*/true);
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
