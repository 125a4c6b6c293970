// RerunMachine: tells whether a suspicious result is the fault of the hardware or of the program (Megatron's rerun
// state machine).
//
// A suspicious value (NaN, infinity, a spike) is computed again: first at once on the same device and then, if it came
// out the same, from a checkpoint on another device.
//
//   not_running ─► initial_run ─ no rank rejects ─► not_running: the weights are updated
//                      │ some rank rejects: restore random streams and data
//                      ▼
//               rerunning_in_place ─ another value: transient error ─► if fatal exit 17, otherwise continue
//                      │ the same value, and fatal
//                      ▼
//           will_rerun_from_checkpoint: save, exit 16
//                      │ the run is started again
//                      ▼
//           rerunning_from_checkpoint ─ same device as before ─► exit 16 again without saving
//                                     ─ another value: persistent error of the first device ─► exit 17
//                                     ─ the same value: it is correct; the program or its data is at fault ─► exit 17
//
// A value is identified by its message, its rank and the number of the call within the step. The first step after a
// start is not validated.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/train/faults/rejection_tracker.h"
#include "megalith/train/settings/rerun_settings.h"

namespace megalith::train {

// Exit codes that launchers and schedulers act on; they must never change.
inline constexpr int kExitResumeElsewhere = 16;  // start again from the newest checkpoint on other hardware
inline constexpr int kExitResultRejected = 17;   // a result is wrong, or correct but useless: see the message

// The states of the picture above.
enum class RerunState {
  kNotRunning,
  kInitialRun,
  kRerunningInPlace,
  kWillRerunFromCheckpoint,
  kRerunningFromCheckpoint,
  kRerunningAgainFromCheckpoint,  // the rerun was on the same device: try once more
};

// A value of a step, with the verdict on it. A value that is not fatal is reported and the run continues, whatever the
// reruns say.
struct CheckedResult {
  std::string message;  // "found NaN in local forward loss calculation"; the same on every rank and in every run
  double value = 0;
  bool rejected = false;
  double tolerance = 0;  // relative difference up to which a rerun counts as the same
  bool fatal = true;
  std::string where{};  // place in the step, for people: "micro-batch 2 of 4"
};

// A value that a rank has rejected, with everything that the run resumed from the checkpoint needs to know.
struct RejectedResult {
  int rank = 0;
  int64_t iteration = 0;  // from 1
  std::string message;
  int64_t call = 0;  // earlier calls with that message in the step
  double value = 0;
  std::string node, device;
  bool injected = false;  // by error_injection_rate
  bool operator==(const RejectedResult&) const = default;
};
// Converts to one JSON list and back. rejected_from_json throws DataError naming `origin`.
std::string rejected_to_json(const std::vector<RejectedResult>& results);
std::vector<RejectedResult> rejected_from_json(const std::string& text, const std::string& origin);

// Returns |2(a-b)/(a+b)|; 0 if both are equal or both NaN; infinity if only one of them is finite or a = -b.
double relative_difference(double a, double b);

// Summarizes relative differences: "12 results, 11 identical, avg 1e-9, p50 …, max …".
std::string describe_differences(std::vector<double> differences);

// One thread per rank. All ranks call next() in step; validate() may be called by any rank at any time during a pass.
class RerunMachine {
 public:
  // Fixed for a run.
  struct Settings {
    config::RerunMode mode = config::RerunMode::kValidateResults;
    double injection_rate = 0;  // n > 0: about one of n validations is rejected although nothing is wrong; 0: none
    InjectedFault injection = InjectedFault::kTransientError;
    ResultPlace place;  // this rank
  };
  // Returns for each question whether any rank answers yes. Collective over all ranks.
  using AnyRank = std::function<std::vector<bool>(std::vector<bool> mine)>;

  // `tracker` may be nullptr; it outlives the machine.
  RerunMachine(Settings settings, AnyRank any_rank, RejectionTracker* tracker);

  // The caller's next action.
  enum class Next {
    kRun,     // save the random streams, then run forward and backward
    kRerun,   // restore the random streams, then run the same micro-batches again
    kUpdate,  // the result is accepted: update the weights
    kLeave,   // restore the random streams, then leave as demand() says
  };
  // Returns the next action in this step (`iteration` counts from 1). Collective in validate_results mode.
  Next next(int64_t iteration);

  // Checks a value during forward and backward. In disabled mode a rejected value throws ResultRejected if it is fatal,
  // and logs a warning otherwise.
  void validate(const CheckedResult& result);

  // Returns whether |value| is at least 10 times the largest of the first 100 of its `kind` ("loss"); those 100 never
  // are spikes.
  bool is_spike(const std::string& kind, double value);

  // How to leave the run.
  struct Demand {
    int exit_code = kExitResultRejected;
    bool save = false;  // first save a checkpoint of the state before this step
    std::string text;   // finding of this rank; empty when another rank made it
  };
  // Valid after kLeave.
  const Demand& demand() const { return demand_; }
  // Returns whether a bad value of the current pass would be rejected, as in every step but the first after a start.
  bool validates() const;
  // Returns what this rank has rejected in the current step.
  const std::optional<RejectedResult>& rejected() const { return rejected_; }

  // Continues from a checkpoint that was saved because of these results: the next step is checked again.
  void resume(const std::vector<RejectedResult>& of_all_ranks);

  RerunState state() const { return state_; }

  // Returns the differences between the two runs of each step, by message, since the last call (statistics mode).
  std::map<std::string, std::vector<double>> take_differences() { return std::exchange(differences_, {}); }

 private:
  using Call = std::pair<std::string, int64_t>;  // message, number of the call

  void begin_step(int64_t iteration);
  Next after_initial_run();
  Next after_rerun_in_place();
  Next after_rerun_from_checkpoint();
  void reject(const CheckedResult& result, int64_t call);
  void compare_in_place(const CheckedResult& result);
  void compare_from_checkpoint(const CheckedResult& result);
  void validate_disabled(const CheckedResult& result);
  void collect(const CheckedResult& result, int64_t call);
  double difference_to(const CheckedResult& again) const;
  bool inject();
  void track(const char* status, const CheckedResult& result) const;
  std::string describe(const CheckedResult& result) const;
  std::string place_of(const CheckedResult& result) const;

  const Settings settings_;
  const AnyRank any_rank_;
  RejectionTracker* const tracker_;
  std::mt19937_64 random_;

  RerunState state_ = RerunState::kNotRunning;
  bool first_step_done_ = false;
  int64_t iteration_ = 0;
  std::map<std::string, int64_t> calls_;                          // calls per message in this pass
  std::optional<RejectedResult> rejected_;                        // in this step, on this rank
  bool failed_ = false, repeated_ = false, same_device_ = false;  // outcome of the rerun on this rank
  Demand demand_;
  std::map<std::string, std::pair<int64_t, double>> largest_;  // by kind: number of values seen, the largest
  std::map<Call, double> first_values_;                        // values of the first run, in statistics mode
  std::map<std::string, std::vector<double>> differences_;
};

// A result was rejected in disabled mode.
class ResultRejected : public Error {
 public:
  using Error::Error;
};

}  // namespace megalith::train
