// What happens in a run, as events: TrainerCallback has one virtual function for each (the names of Hugging Face's),
// and the trainer calls those of a CallbackList in order.
//
// A callback steers by the flags of TrainerControl and sees everything through one TrainerEvent. It never touches
// tensors of the model: the trainer's override points are for that.
//
// Every rank delivers every event, in the same order, to its own callbacks; so a callback may use collectives of a
// group that it was made with, if all ranks have such a callback. Those that write files look at
// state.is_world_process_zero. Flags must come out alike on all ranks: a callback that reads a clock or a signal does
// not set them by itself.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "megalith/train/report/metric_list.h"
#include "megalith/train/report/trainer_state.h"

namespace megalith::train {

struct TrainerSettings;

// What the trainer does next. Callbacks set the flags; the trainer reads and clears them.
struct TrainerControl {
  bool should_training_stop = false;  // after this step; stays set
  bool should_epoch_stop = false;     // after this step; cleared at the start of an epoch
  bool should_save = false;           // a checkpoint, after this step
  bool should_evaluate = false;       // after this step
  bool should_log = false;            // a line, after this step
  bool operator==(const TrainerControl&) const = default;

  // CallbackList calls them before the callbacks hear of the event.
  void new_training() { should_training_stop = false; }
  void new_epoch() { should_epoch_stop = false; }
  void new_step() { should_save = should_evaluate = should_log = false; }
};

// What every event carries. References are valid during the call.
struct TrainerEvent {
  const TrainerSettings& settings;
  TrainerState& state;
  TrainerControl& control;
  MetricList metrics{};            // on_log: the line; on_evaluate, on_predict: the results
  std::filesystem::path folder{};  // on_save: the checkpoint that was written
  // The time at the end of the last step: the same number on all ranks, by which they can agree on what happens every
  // so many seconds. Only differences mean something; 0 before the first step.
  double clock_seconds = 0;
};

class TrainerCallback {
 public:
  virtual ~TrainerCallback() = default;

  virtual void on_init_end(TrainerEvent&) {}     // the trainer is made
  virtual void on_train_begin(TrainerEvent&) {}  // the state stands where the run (re)starts
  virtual void on_train_end(TrainerEvent&) {}    // after the last step, its line and its evaluation
  virtual void on_epoch_begin(TrainerEvent&) {}  //
  virtual void on_epoch_end(TrainerEvent&) {}    // flags set here are acted on as after a step
  virtual void on_step_begin(TrainerEvent&) {}   // before the first micro-batch
  virtual void on_substep_end(TrainerEvent&) {}  // a micro-batch is through (unless the pipeline runs them as one)
  virtual void on_pre_optimizer_step(TrainerEvent&) {}  // gradients are complete
  virtual void on_optimizer_step(TrainerEvent&) {}      // parameters are updated, or the update was skipped
  virtual void on_step_end(TrainerEvent&) {}            // global_step and epoch are counted
  virtual void on_evaluate(TrainerEvent&) {}            // `metrics`: eval_*, which on_log has heard before
  virtual void on_predict(TrainerEvent&) {}             // `metrics`: test_*
  virtual void on_prediction_step(TrainerEvent&) {}     // a group of evaluation micro-batches is through
  virtual void on_save(TrainerEvent&) {}                // `folder` is complete
  virtual void on_log(TrainerEvent&) {}  // `metrics`: the line, which is also in state.log_history. Evaluations
                                         // and the totals at the end of training are lines, too

  // What a resumed run gives back to restore(), which it calls before on_train_begin; nothing: no state.
  virtual std::optional<CallbackRecord> record() const { return std::nullopt; }
  virtual void restore(const CallbackRecord&) {}
};

// Callbacks in the order in which they are called. Owns them.
class CallbackList {
 public:
  using Handler = void (TrainerCallback::*)(TrainerEvent&);

  void add(std::unique_ptr<TrainerCallback> callback) { callbacks_.push_back(std::move(callback)); }
  size_t size() const { return callbacks_.size(); }

  // Clears the flags that the event ends (see TrainerControl), then tells everybody:
  //   callbacks.call(&TrainerCallback::on_step_end, event);
  // An exception of a callback passes on; later ones do not hear of the event.
  void call(Handler handler, TrainerEvent& event) const {
    if (handler == &TrainerCallback::on_train_begin) event.control.new_training();
    if (handler == &TrainerCallback::on_epoch_begin) event.control.new_epoch();
    if (handler == &TrainerCallback::on_step_begin) event.control.new_step();
    if (handler == &TrainerCallback::on_evaluate) event.control.should_evaluate = false;
    if (handler == &TrainerCallback::on_save) event.control.should_save = false;
    if (handler == &TrainerCallback::on_log) event.control.should_log = false;
    for (const auto& callback : callbacks_) ((*callback).*handler)(event);
  }

  // Into the state before it is saved, and out of it after it was loaded.
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
