// The events of a run: TrainerCallback has one virtual function per event, under Hugging Face's names, and the trainer
// calls them on every callback of a CallbackList in order.
//
// A callback steers the run through the flags of TrainerControl and sees everything through one TrainerEvent. It never
// touches the model's tensors; Objective and the data collator are the places for that.
//
// Every rank delivers every event, in the same order, to its own callbacks. So a callback may use collectives of a
// group that it was given, provided that all ranks have such a callback. Callbacks that write files check
// state.is_world_process_zero. Flags must have the same values on all ranks: a callback that reads a clock or a signal
// must not set them on its own.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "megalith/train/report/metric_list.h"
#include "megalith/train/report/trainer_state.h"

namespace megalith::optim {
struct Histograms;
}

namespace megalith::train {

struct TextSamples;
struct TrainerSettings;

// The trainer's next actions. Callbacks set the flags; the trainer reads and clears them. Setting a flag twice is
// harmless; no callback may clear one that another has set.
struct TrainerControl {
  bool should_training_stop = false;  // after this step; stays set
  bool should_epoch_stop = false;     // after this step; cleared at the start of an epoch
  bool should_save = false;           // write a checkpoint after this step
  bool should_evaluate = false;       // evaluate after this step
  bool should_log = false;            // log a line after this step
  bool operator==(const TrainerControl&) const = default;

  // Called by CallbackList before the callbacks receive the event.
  void new_training() { should_training_stop = false; }
  void new_epoch() { should_epoch_stop = false; }
  void new_step() { should_save = should_evaluate = should_log = false; }
};

// How a step ended.
enum class StepOutcome {
  kUpdated,             // the parameters were updated
  kLossNotFinite,       // the update was skipped because the loss is NaN or infinite
  kGradientsNotFinite,  // the update was skipped because of gradients alone: in fp16, the loss scale was too large
  kLeftOut              // the run was told to skip this step (iterations_to_skip): only its data was consumed
};

// The data of every event. References are valid only during the call. `metrics` may be changed: callbacks later in the
// list see the result.
struct TrainerEvent {
  const TrainerSettings& settings;
  TrainerState& state;
  TrainerControl& control;
  // on_log: the line; on_evaluate, on_predict: the results; on_step_end: the numbers of that step alone, which the host
  // knows anyway (TrainingLog::last_step and, in Megatron's style, the counts of samples; no loss if it was left out).
  MetricList metrics{};
  std::filesystem::path folder{};  // on_save: the checkpoint that was written
  // The time at the end of the last step: the same number on all ranks, so that they agree on anything that happens
  // every so many seconds. Only differences have a meaning; 0 before the first step.
  double clock_seconds = 0;
  StepOutcome outcome = StepOutcome::kUpdated;    // how the last step ended; meant for on_step_end
  int64_t consumed_samples = 0;                   // training samples so far, over all ranks and starts of the run
  const TextSamples* samples = nullptr;           // on_samples: filled on rank 0, empty elsewhere
  const optim::Histograms* histograms = nullptr;  // on_histograms: the same on all ranks
};

// Receives the events of a run. Every function does nothing unless overridden. Functions run on the trainer's thread,
// between the device's work; a slow one delays the next step on all ranks.
class TrainerCallback {
 public:
  virtual ~TrainerCallback() = default;

  virtual void on_init_end(TrainerEvent&) {}     // the trainer is constructed
  virtual void on_train_begin(TrainerEvent&) {}  // the state is that of the step where the run starts or resumes
  virtual void on_train_end(TrainerEvent&) {}    // after the last step, its line and its evaluation
  virtual void on_epoch_begin(TrainerEvent&) {}  // the first step of the epoch has been loaded
  virtual void on_epoch_end(TrainerEvent&) {}    // flags set here are acted on as after a step
  virtual void on_step_begin(TrainerEvent&) {}   // before the first micro-batch
  virtual void on_substep_end(TrainerEvent&) {}  // a micro-batch is done; not called with several pipeline stages
  virtual void on_pre_optimizer_step(TrainerEvent&) {}  // gradients are complete
  virtual void on_optimizer_step(TrainerEvent&) {}      // parameters are updated, or the update was skipped
  virtual void on_step_end(TrainerEvent&) {}            // global_step and epoch already count the step
  virtual void on_evaluate(TrainerEvent&) {}            // `metrics`: eval_*, already passed to on_log
  virtual void on_predict(TrainerEvent&) {}             // `metrics`: test_*
  virtual void on_prediction_step(TrainerEvent&) {}     // a group of evaluation micro-batches is done
  virtual void on_save_begin(TrainerEvent&) {}          // a save is about to start; `folder` is where
  virtual void on_save(TrainerEvent&) {}                // `folder` is complete
  virtual void on_samples(TrainerEvent&) {}             // `samples` of the step that has just ended
  virtual void on_histograms(TrainerEvent&) {}          // `histograms` of the step that has just ended
  virtual void on_log(TrainerEvent&) {}  // `metrics`: the line, which is also in state.log_history. Evaluations
                                         // and the totals at the end of training are lines, too

  // Returns the state that a resumed run passes to restore() before on_train_begin; std::nullopt for no state.
  virtual std::optional<CallbackRecord> record() const { return std::nullopt; }
  virtual void restore(const CallbackRecord&) {}
};

// Callbacks in the order in which they are called. Owns them.
class CallbackList {
 public:
  using Handler = void (TrainerCallback::*)(TrainerEvent&);

  // Appends a callback; the order of calls is the order of additions.
  void add(std::unique_ptr<TrainerCallback> callback) { callbacks_.push_back(std::move(callback)); }
  size_t size() const { return callbacks_.size(); }

  // Clears the flags that the event fulfills (see TrainerControl), then calls all callbacks:
  //   callbacks.call(&TrainerCallback::on_step_end, event);
  // An exception of a callback propagates; later callbacks do not receive the event.
  void call(Handler handler, TrainerEvent& event) const {
    if (handler == &TrainerCallback::on_train_begin) event.control.new_training();
    if (handler == &TrainerCallback::on_epoch_begin) event.control.new_epoch();
    if (handler == &TrainerCallback::on_step_begin) event.control.new_step();
    if (handler == &TrainerCallback::on_evaluate) event.control.should_evaluate = false;
    if (handler == &TrainerCallback::on_save) event.control.should_save = false;
    if (handler == &TrainerCallback::on_log) event.control.should_log = false;
    for (const auto& callback : callbacks_) ((*callback).*handler)(event);
  }

  // Copies the callbacks' records into the state before it is saved, and back after it was loaded.
  void keep_records(TrainerState& state) const {
    for (const auto& callback : callbacks_)
      if (auto record = callback->record()) state.keep_callback(std::move(*record));
  }
  void restore_records(const TrainerState& state) const {
    for (const auto& callback : callbacks_)
      if (const auto mine = callback->record())
        if (const CallbackRecord* saved = state.find_callback(mine->name)) callback->restore(*saved);
  }

 private:
  std::vector<std::unique_ptr<TrainerCallback>> callbacks_;
};

}  // namespace megalith::train
