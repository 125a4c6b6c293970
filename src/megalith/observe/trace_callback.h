// Timeline and timers as callbacks. Both use collectives, so every rank of the group needs them.
#pragma once

#include <functional>

#include "megalith/base/trace.h"
#include "megalith/comm/group.h"
#include "megalith/observe/report_settings.h"
#include "megalith/train/report/callback.h"

namespace megalith::observe {

// Records the given steps; rank 0 writes them to `file` at the end of the last one (or of the run, if that comes
// first). The recorder outlives it.
class TraceCallback : public train::TrainerCallback {
 public:
  // Steps to record, and the file they go to; only `label` differs between ranks.
  struct Settings {
    TraceSteps steps;
    std::filesystem::path file;
    std::string label;  // name of this rank: "rank 3: tp 1, pp 1, dp 0"
  };
  // `world` is every rank of the run: the timeline is gathered over it.
  TraceCallback(comm::Group world, TraceRecorder& recorder, Settings settings)
      : world_(std::move(world)), recorder_(recorder), settings_(std::move(settings)) {}

  void on_step_begin(train::TrainerEvent& event) override;
  void on_step_end(train::TrainerEvent& event) override;
  void on_train_end(train::TrainerEvent& event) override;

 private:
  void write();

  comm::Group world_;
  TraceRecorder& recorder_;
  Settings settings_;
  bool open_ = false;  // between the first and the last of the steps
};

// The time of one phase on each rank of a group. Milliseconds per step.
struct PhaseTimes {
  std::string name;
  std::vector<double> milliseconds;  // by rank; 0 where the phase did not occur
};

// Returns Megatron's text for `timing_log_option`: "minmax", "max" or "all". Phases that no rank has are left out;
// without phases the text is empty. Throws ConfigError for any other option. The layout is that of Megatron's logs, so
// that scripts which read those can read it.
std::string timer_text(std::string_view option, const std::vector<PhaseTimes>& phases);

// Returns, on rank 0, the times of all members by phase, divided by `steps`, in the order in which rank 0 (then rank 1,
// …) first saw the phases; empty on other ranks. Collective over the group. Empties the totals of the recorder on every
// rank.
std::vector<PhaseTimes> gather_times(const comm::Group& group, TraceRecorder& recorder, int64_t steps);

// Enables totals, and at each logged training line prints on world process zero how long the phases of a step took.
// Costs one gather per log line, and no wait for the device: spans that a GPU has not finished belong to the next line.
class TimerCallback : public train::TrainerCallback {
 public:
  using Say = std::function<void(const std::string&)>;
  // Megatron's timing_log_level and timing_log_option.
  struct Settings {
    int log_level = 0;                  // 0 to 2: higher levels have more timers
    std::string log_option = "minmax";  // see timer_text
  };
  // `say` prints on world process zero; `world` is every rank of the run. The recorder outlives it.
  TimerCallback(comm::Group world, TraceRecorder& recorder, Settings settings, Say say)
      : world_(std::move(world)), recorder_(recorder), settings_(std::move(settings)), say_(std::move(say)) {}

  void on_train_begin(train::TrainerEvent& event) override;
  void on_log(train::TrainerEvent& event) override;

 private:
  comm::Group world_;
  TraceRecorder& recorder_;
  Settings settings_;
  Say say_;
  int64_t last_step_ = 0;  // the step at which times were last taken
};

}  // namespace megalith::observe
