// events.jsonl: what happens in a run besides its numbers; one JSON object per line, for programs to read during the
// run.
//
//   {"time":1763230000.123,"step":0,"event":"start","run_name":"…","max_steps":300,"restarts":0,
//    "layout":{"world_size":4,"tp":2,"pp":2,"cp":1,"ep":1,"etp":2,"vpp":1,"order":"tp-cp-ep-dp-pp"}}
//
// `time` is in seconds since 1970, `step` is the number of completed steps. The events:
//   start        the run (re)starts at `step` in this layout; `restarts` counts earlier starts of the same job
//   restart      the job was started again; `detect_seconds` is the time from the last sign of life until the failure
//                was detected
//   skip         the step did not update the parameters; `why` says what was to blame: `loss` (it is NaN or infinite),
//                `gradients` (the loss is finite, but they are not) or `requested` (iterations_to_skip: the data was
//                consumed, nothing was computed). `loss` is null unless finite, and `loss_scale` is that of the step;
//                both are absent if nothing was computed, the scale also in runs that have none
//   straggler    `rank` computes for `compute_seconds` per step, the others for `median_seconds`, since the last line
//                (log_straggler)
//   evaluation   `loss`, if there is one
//   save         `checkpoint` is complete
//   end          the run is over; `finished` says whether it reached max_steps
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "megalith/comm/store/restarts.h"
#include "megalith/io/file_io.h"
#include "megalith/layout/grid_shape.h"
#include "megalith/train/report/callback.h"

namespace megalith::observe {

// Writes `<folder>/events.jsonl` on world process zero. A run from the start begins a new file; one that resumes or was
// started again appends to it: past events stay recorded.
class EventsFileCallback : public train::TrainerCallback {
 public:
  // Facts for the start event: the name of the run, and the layout of its ranks.
  struct Settings {
    std::string run_name;
    layout::GridShape grid;
  };
  // `launch` says how the ranks were started, if known. Creates the folder when training begins.
  EventsFileCallback(std::filesystem::path folder, Settings settings, std::optional<comm::RankLaunch> launch);
  void on_train_begin(train::TrainerEvent& event) override;
  void on_step_end(train::TrainerEvent& event) override;
  void on_log(train::TrainerEvent& event) override;
  void on_save(train::TrainerEvent& event) override;
  void on_train_end(train::TrainerEvent& event) override;

 private:
  void append(const train::TrainerEvent& event, const char* what, const nlohmann::ordered_json& details);

  const std::filesystem::path folder_;
  const Settings settings_;
  const std::optional<comm::RankLaunch> launch_;
  io::FileHandle file_;  // open on world process zero between begin and end of training
  uint64_t bytes_ = 0;
};

}  // namespace megalith::observe
