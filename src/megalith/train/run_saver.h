// RunSaver: the save points of a run, from the request to the complete folder, and which of them are kept.
//
// A save that fails costs a checkpoint, not the run: nothing older was touched, and all ranks know of it. Only where a
// run ends in order to go on from what is saved (a signal, a rerun elsewhere) a failure ends it; see require().
#pragma once

#include <filesystem>
#include <functional>

#include "megalith/base/trace.h"
#include "megalith/checkpoint/saver.h"
#include "megalith/comm/store/heartbeat.h"
#include "megalith/train/report/trainer_state.h"
#include "megalith/train/run_progress.h"
#include "megalith/train/settings/trainer_settings.h"
#include "megalith/train/step/optimized_model.h"

namespace megalith::train {

// One thread per rank; all ranks call the same functions in the same order. Everything that it is made of outlives it.
class RunSaver {
 public:
  struct Setup {
    const SaveSettings& settings;
    TrainerState& state;           // best_model_checkpoint follows what is saved
    std::filesystem::path assets;  // folder whose tokenizer files become part of each save point; empty: none
    comm::Heartbeat heartbeat;
    TraceRecorder& trace;
    std::function<void(const std::filesystem::path&)> saved;  // called with each folder that is complete
  };
  RunSaver(Setup setup, parallel::ParallelContext& context);

  // Waits for a save in the background, if there is one. Call it before save().
  void wait_for_earlier();
  // Writes output_dir/checkpoint-S for the step of the state, or, with in_background, starts to. All parameters have
  // arrived (finish_param_gather).
  void save(OptimizedModel& model, RunProgress progress);
  // Ends a save in the background if it is complete; does not wait.
  void poll();
  // Ends a save in the background.
  void finish();
  // Before parameters change: what is being written in the background has been copied.
  void finish_copy() { saver_.finish_copy(); }
  bool busy() const { return saver_.busy(); }

  // Whether a save that fails throws.
  void require(bool required) { required_ = required; }

 private:
  void guarded(const std::function<void()>& save);
  void complete(const checkpoint::SaveReport& report);
  void end(bool wait);

  const Setup setup_;
  parallel::ParallelContext& context_;
  std::filesystem::path folder_;  // the last save point that was begun
  bool required_ = false;
  checkpoint::Saver saver_;
};

}  // namespace megalith::train
