// Timeline and timers as callbacks. Both use collectives: every rank of the group has them.
#pragma once

#include <functional>

#include "megalith/base/trace.h"
#include "megalith/comm/group.h"
#include "megalith/observe/report_settings.h"
#include "megalith/train/report/callback.h"

namespace megalith::observe {

// Records the steps and has rank 0 write them to `file` as the last of them ends (or the run, if that is earlier). The
// recorder outlives it.
class TraceCallback : public train::TrainerCallback {
 public:
  struct Settings {
    TraceSteps steps;
    std::filesystem::path file;
    std::string label;    // of this rank: "rank 3: tp 1, pp 1, dp 0"
    bool records = true;  // false: takes part, with no spans of its own (profile_ranks)
  };
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

// What became of a phase's time on each rank of a group.
struct PhaseTimes {
  std::string name;
  std::vector<double> milliseconds;  // by rank; 0 where the phase did not occur
};

// Megatron's texts for `timing_log_option`: "minmax", "max" or "all". Phases that no rank has are left out; nothing but
// the heading is an empty text. Throws ConfigError for another option.
std::string timer_text(std::string_view option, const std::vector<PhaseTimes>& phases);

// On rank 0 the totals of all members by phase, each divided by `steps`, in the order in which rank 0 (then rank 1, …)
// saw the phases; nothing on the others. Collective over the group.
std::vector<PhaseTimes> gather_times(const comm::Group& group, TraceRecorder& recorder, int64_t steps);

// Switches totals on and says at each logged training line what a step's phases took, on world
// process zero.
class TimerCallback : public train::TrainerCallback {
 public:
  using Say = std::function<void(const std::string&)>;
  struct Settings {
    int log_level = 0;                  // 0 to 2: how many timers
    std::string log_option = "minmax";  // see timer_text
  };
  TimerCallback(comm::Group world, TraceRecorder& recorder, Settings settings, Say say)
      : world_(std::move(world)), recorder_(recorder), settings_(std::move(settings)), say_(std::move(say)) {}

  void on_train_begin(train::TrainerEvent& event) override;
  void on_log(train::TrainerEvent& event) override;

 private:
  comm::Group world_;
  TraceRecorder& recorder_;
  Settings settings_;
  Say say_;
  int64_t last_step_ = 0;  // at which times were taken
};

}  // namespace megalith::observe
