// The parts of a Trainer that are not the loop: construction, events, evaluation, export. The loop is in train_loop.cc.
#include "megalith/train/trainer.h"

#include "megalith/base/error.h"
#include "megalith/train/report/intervals.h"
#include "megalith/train/saving/save_model.h"

namespace megalith::train {

namespace {

// Language modeling unless the program brings an objective.
TrainerSetup with_defaults(TrainerSetup setup) {
  if (!setup.objective) setup.objective = std::make_unique<Objective>();
  return setup;
}

}  // namespace

Trainer::Trainer(model::VirtualModels& models, TrainerSettings settings, TrainerSetup setup)
    : models_(models),
      context_(models.context()),
      settings_(std::move(settings)),
      setup_(with_defaults(std::move(setup))),
      batches_(settings_.batch),
      trace_(setup_.trace ? *setup_.trace : no_trace_),
      runner_(models, settings_.step, context_, *setup_.objective, trace_),
      saver_({.settings = settings_.save,
              .state = state_,
              .assets = setup_.assets,
              .heartbeat = setup_.heartbeat,
              .trace = trace_,
              .saved = [this](const std::filesystem::path& folder) { emit(&TrainerCallback::on_save, {}, folder); }},
             context_) {
  // First, so that the flags of the intervals are set before any other callback looks at them.
  callbacks_.add(std::make_unique<FlowCallback>());
  if (settings_.length.early_stopping_steps > 0)
    callbacks_.add(std::make_unique<EarlyStoppingCallback>(settings_.length.early_stopping_steps));
  for (auto& callback : setup_.callbacks) callbacks_.add(std::move(callback));
  state_.is_world_process_zero = context_.rank() == 0;
  state_.is_local_process_zero = context_.world().place().local_rank == 0;
  emit(&TrainerCallback::on_init_end);
}

// The event lives for one call; callbacks may change its metrics, its state and the control flags.
TrainerEvent Trainer::make_event() {
  return {.settings = settings_,
          .state = state_,
          .control = control_,
          .clock_seconds = clock_seconds_,
          .outcome = outcome_,
          .consumed_samples = position_.consumed_samples};
}

void Trainer::emit(CallbackList::Handler handler, MetricList metrics, std::filesystem::path folder) {
  TrainerEvent event = make_event();
  event.metrics = std::move(metrics);
  event.folder = std::move(folder);
  callbacks_.call(handler, event);
}

// The history also keeps the step, which callbacks can read from the state.
void Trainer::log(MetricList line) {
  if (state_.epoch) line.set("epoch", *state_.epoch);
  if (settings_.log.tokens_seen != config::TokensSeen::kNo)
    line.set("num_input_tokens_seen", static_cast<double>(state_.num_input_tokens_seen));
  MetricList kept = line;
  kept.set("step", static_cast<double>(state_.global_step));
  state_.log_history.push_back(std::move(kept));
  emit(&TrainerCallback::on_log, std::move(line));
}

// Groups have as many micro-batches as a training step, so that a pipeline is as busy as in training. The watchdog
// hears of every group: an evaluation may take longer than any step.
EvalLoopOutput Trainer::evaluate_on(const EvalData& data, const std::string& prefix) {
  const auto span = trace_.span({.name = "evaluate", .level = 0});
  const auto beat = [this] { setup_.heartbeat.enter(comm::Section::kEvaluation, state_.global_step); };
  beat();
  if (model_) model_->finish_param_gather();
  const int64_t step_samples = batches_.micro_batch_size() * batches_.data_parallel_size();
  return evaluation_loop(
      runner_, data,
      {.micro_batch_size = settings_.eval.micro_batch_size,
       .microbatches = static_cast<int>(std::max<int64_t>(1, batches_.final_global_batch_size() / step_samples)),
       .metric_key_prefix = prefix,
       .group_end = [this, beat] {
         beat();
         emit(&TrainerCallback::on_prediction_step);
       }});
}

// Each data set is logged on its own; on_evaluate gets all metrics together, once.
MetricList Trainer::evaluate(const std::string& prefix) {
  check<ConfigError>(!setup_.eval_data.empty(),
                     "there is no data to evaluate on; set eval_dataset or val_size, or do not evaluate");
  MetricList all;
  for (const EvalData& data : setup_.eval_data) {
    const EvalLoopOutput output = evaluate_on(data, data.name.empty() ? prefix : prefix + "_" + data.name);
    all.set_all(output.metrics);
    log(output.metrics);
  }
  emit(&TrainerCallback::on_evaluate, all);
  return all;
}

EvalLoopOutput Trainer::predict(const EvalData& data, const std::string& prefix) {
  EvalLoopOutput output = evaluate_on(data, prefix);
  emit(&TrainerCallback::on_predict, output.metrics);
  return output;
}

// With overlapped gathering, parameters of the last update may still be arriving.
void Trainer::save_model(const std::filesystem::path& folder) {
  if (model_) model_->finish_param_gather();
  train::save_model(models_, settings_.save, folder, setup_.assets);
}

}  // namespace megalith::train
