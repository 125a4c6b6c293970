// events.jsonl: what happened in a run, beside its numbers; one JSON object a line, for programs to read while it goes
// on.
//
//   {"time":1763230000.123,"step":0,"event":"start","run_name":"…","max_steps":300,"restarts":0,
//    "layout":{"world_size":4,"tp":2,"pp":2,"cp":1,"ep":1,"etp":2,"vpp":1,"order":"tp-cp-ep-dp-pp"}}
//
// `time` is in seconds since 1970, `step` how many were done. The events:
//   start        the run (re)starts at `step`, in this layout; `restarts` starts of the same job came before
//   restart      the job was started again; `detect_seconds`: from the last sign of life until the failure was seen
//   skip         the step's update was left out: its gradients were not finite (noticed at the step's line)
//   straggler    `rank` computes `compute_seconds` a step, the others `median_seconds`, since the last line
//   (log_straggler) evaluation   `loss`, if there is one save         `checkpoint` is complete end          the run is
//   over; `finished`: it did max_steps
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

// Writes `<folder>/events.jsonl` on world process zero. A run from the start begins the file anew; one that resumes or
// was started again goes on with it, since what happened has happened.
class EventsFileCallback : public train::TrainerCallback {
 public:
  struct Settings {
    std::string run_name;
    layout::GridShape grid;
  };
  // `launch`: how the ranks were started, when known.
  EventsFileCallback(std::filesystem::path folder, Settings settings, std::optional<comm::RankLaunch> launch);
  void on_train_begin(train::TrainerEvent& event) override;
  void on_log(train::TrainerEvent& event) override;
  void on_save(train::TrainerEvent& event) override;
  void on_train_end(train::TrainerEvent& event) override;

 private:
  void append(const train::TrainerEvent& event, const char* what, const nlohmann::ordered_json& details);

  const std::filesystem::path folder_;
  const Settings settings_;
  const std::optional<comm::RankLaunch> launch_;
  io::FileHandle file_;  // open on world process zero, between the begin and the end
  uint64_t bytes_ = 0;
};

}  // namespace megalith::observe
