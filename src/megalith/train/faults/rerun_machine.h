// RerunMachine: is a suspicious result the hardware's fault or the program's? (Megatron's rerun state machine.)
//
// A value that should not be (NaN, infinity, a spike) is computed again: first at once on the same device, then, if it
// came out the same, from a checkpoint on another device.
//
//   not_running ─► initial_run ─ nobody rejects ─► not_running: the weights are updated
//                      │ some rank rejects: random streams and data as before
//                      ▼
//               rerunning_in_place ─ another value: a transient error ─► fatal: exit 17, otherwise go on
//                      │ the same value and fatal
//                      ▼
//           will_rerun_from_checkpoint: save, exit 16
//                      │ the run is started again
//                      ▼
//           rerunning_from_checkpoint ─ same device as before ─► exit 16 again, nothing is saved
//                                     ─ another value: a persistent error of that device ─► exit 17
//                                     ─ the same value: it is correct, the program or its data is at fault ─► exit 17
//
// A value is known by its message, its rank and the number of the call in the step. The first step after a start is not
// validated.
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

// Numbers that launchers and schedulers act on: they may not change.
inline constexpr int kExitResumeElsewhere = 16;  // start again from the newest checkpoint, on other hardware
inline constexpr int kExitResultRejected = 17;   // a result is wrong, or right and useless: look at what is named

enum class RerunState {
  kNotRunning,
  kInitialRun,
  kRerunningInPlace,
  kWillRerunFromCheckpoint,
  kRerunningFromCheckpoint,
  kRerunningAgainFromCheckpoint,  // it was the same device: once more
};

// A value of a step, and what is thought of it.
struct CheckedResult {
  std::string message;  // "found NaN in local forward loss calculation"; the same on every rank and in every run
  double value = 0;
  bool rejected = false;
  double tolerance = 0;  // relative difference up to which a rerun counts as the same
  bool fatal = true;
  std::string where{};  // in the step, for people: "micro-batch 2 of 4"
};

// The value that a rank has rejected, as the run that goes on from the checkpoint needs to know it.
struct RejectedResult {
  int rank = 0;
  int64_t iteration = 0;  // from 1
  std::string message;
  int64_t call = 0;  // how many of that message came before it in the step
  double value = 0;
  std::string node, device;
  bool injected = false;  // by error_injection_rate
  bool operator==(const RejectedResult&) const = default;
};
// One JSON list, and back. Throws DataError naming `origin`.
std::string rejected_to_json(const std::vector<RejectedResult>& results);
std::vector<RejectedResult> rejected_from_json(const std::string& text, const std::string& origin);

// |2(a-b)/(a+b)|; equal, or both NaN: 0; NaN or infinite on one side: infinite.
double relative_difference(double a, double b);

// "12 results, 11 identical, avg 1e-9, p50 …, max …" of relative differences.
std::string describe_differences(std::vector<double> differences);

// One thread a rank. All ranks call next() alike; validate() as it comes.
class RerunMachine {
 public:
  struct Settings {
    config::RerunMode mode = config::RerunMode::kValidateResults;
    double injection_rate = 0;  // n: about one of n validations is rejected although nothing is wrong; 0: none
    InjectedFault injection = InjectedFault::kTransientError;
    ResultPlace place;  // this rank
  };
  // Whether any rank says yes, question by question. Collective over all ranks.
  using AnyRank = std::function<std::vector<bool>(std::vector<bool> mine)>;

  // `tracker` may be nullptr; it outlives the machine.
  RerunMachine(Settings settings, AnyRank any_rank, RejectionTracker* tracker);

  enum class Next {
    kRun,     // keep the random streams, then forward and backward
    kRerun,   // put the random streams back, then the same micro-batches again
    kUpdate,  // the result stands: update the weights
    kLeave,   // put the random streams back; leave as demand() says
  };
  // What comes now in this step (iteration from 1). Collective in validate_results.
  Next next(int64_t iteration);

  // During a run of forward and backward. In disabled mode a rejected value throws ResultRejected when it is fatal and
  // is warned of otherwise.
  void validate(const CheckedResult& result);

  // Whether a value is at least 10 times the largest |value| of the first 100 of its `kind` ("loss"); those are never.
  bool is_spike(const std::string& kind, double value);

  struct Demand {
    int exit_code = kExitResultRejected;
    bool save = false;  // a checkpoint of the state before this step
    std::string text;   // what this rank has found; empty: another rank did
  };
  // After kLeave.
  const Demand& demand() const { return demand_; }
  // What this rank has rejected in the present step.
  const std::optional<RejectedResult>& rejected() const { return rejected_; }

  // The run goes on from a checkpoint that was saved because of these: the next step is looked at again.
  void resume(const std::vector<RejectedResult>& of_all_ranks);

  RerunState state() const { return state_; }

  // Statistics mode: differences between the two runs of each step since they were last taken, by message.
  std::map<std::string, std::vector<double>> take_differences() { return std::exchange(differences_, {}); }

 private:
  using Call = std::pair<std::string, int64_t>;  // message, number

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
  std::map<std::string, int64_t> calls_;                          // in this run of forward and backward
  std::optional<RejectedResult> rejected_;                        // in this step, on this rank
  bool failed_ = false, repeated_ = false, same_device_ = false;  // what the rerun has shown on this rank
  Demand demand_;
  std::map<std::string, std::pair<int64_t, double>> largest_;  // by kind: how many were seen, the largest
  std::map<Call, double> first_values_;                        // statistics mode
  std::map<std::string, std::vector<double>> differences_;
};

// A result was rejected in disabled mode.
class ResultRejected : public Error {
 public:
  using Error::Error;
};

}  // namespace megalith::train
