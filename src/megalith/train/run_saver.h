// RunSaver: writes the save points of a run, from the request to the complete folder, and decides which to keep.
//
// A save that fails costs a checkpoint, not the run: no older checkpoint has been touched, and all ranks know of the
// failure. Only when a run ends in order to continue from the save (after a signal, or to rerun elsewhere) does a
// failure end it with an error; see require().
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "megalith/base/trace.h"
#include "megalith/checkpoint/saver.h"
#include "megalith/comm/store/heartbeat.h"
#include "megalith/model/pretrained.h"
#include "megalith/train/local_saves.h"
#include "megalith/train/report/trainer_state.h"
#include "megalith/train/run_progress.h"
#include "megalith/train/settings/trainer_settings.h"
#include "megalith/train/step/optimized_model.h"

namespace megalith::train {

// One thread per rank; all ranks call the same functions in the same order. Everything passed to the constructor
// outlives it.
class RunSaver {
 public:
  // Everything that a saver works with. References must outlive the saver.
  struct Setup {
    const SaveSettings& settings;
    TrainerState& state;   // best_model_checkpoint is updated with each save
    model::Assets assets;  // tokenizer files of each save point
    comm::Heartbeat heartbeat;
    TraceRecorder& trace;
    std::function<void(const std::filesystem::path&)> saved;  // called with each complete folder
  };
  // Opens nothing and starts no thread; a background save starts its own.
  RunSaver(Setup setup, parallel::ParallelContext& context);

  // Waits for a background save, if there is one. Must be called before save().
  void wait_for_earlier();
  // Returns the point that local save points continue from, if they are used and not older than step `oldest`. Without
  // one that is used, removes what earlier runs left. Collective.
  std::optional<ResumePoint> load_local(int64_t oldest);
  // Returns the folder of a save point at the step of the state: output_dir/checkpoint-S, or among the rolling ones.
  std::filesystem::path folder_of(bool rolling) const;
  // Writes that folder or, with in_background, starts to. All parameters must have arrived (finish_param_gather).
  void save(OptimizedModel& model, RunProgress progress, bool rolling = false);
  // Completes a background save if all ranks have written theirs; does not wait.
  void poll();
  // Waits for a background save and completes it.
  void finish();
  // Must be called before parameters change: waits until a background save has copied them.
  void finish_copy() { saver_.finish_copy(); }
  bool busy() const { return saver_.busy(); }

  // Sets whether a failed save throws.
  void require(bool required) { required_ = required; }
  // Does not write a save point, for this reason, and treats that as a save that failed. All ranks call it.
  void refuse(bool rolling, const std::string& reason);
  // Returns why the last save point, rolling ones apart, is missing; empty if it is there or none was due.
  const std::string& last_failure() const { return last_failure_; }

 private:
  // Runs a part of a save and treats its failure as the rules at the top say; complete() reports, rotates and notifies.
  void guarded(const std::function<void()>& save);
  void complete(const checkpoint::SaveReport& report);
  void save_locally(OptimizedModel& model, RunProgress progress);
  void end(bool wait);

  const Setup setup_;
  parallel::ParallelContext& context_;
  std::filesystem::path folder_;  // folder of the save point begun last
  bool rolling_ = false;          // whether that is a rolling one
  bool required_ = false;
  std::string last_failure_;
  checkpoint::Saver saver_;
  std::optional<LocalSaves> local_;  // where rolling save points go, if they are local
};

}  // namespace megalith::train
