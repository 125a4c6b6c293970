// StepClock: splits a rank's time in steps into its own work and waiting for others.
//
//   step    |--- work ---|-- wait --|- work -|-- wait --|    compute = length - wait
//           begin                                       end
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "megalith/comm/store/heartbeat.h"

namespace megalith::observe {

// Call begin() and end() around each step; one thread. Time between steps (evaluations, saves) counts neither as work
// nor as waiting.
class StepClock {
 public:
  // Seconds per step, as means.
  struct Means {
    double compute = 0;
    double wait = 0;
  };
  // `waited_seconds` returns the seconds that this rank has waited in operations so far; if it is empty, waiting counts
  // as work.
  explicit StepClock(std::function<double()> waited_seconds) : waited_seconds_(std::move(waited_seconds)) {}

  // Notes the time and the wait so far, at the start of a step.
  void begin() {
    began_ = now();
    waited_ = waited();
  }
  // Adds the step that begin() opened to the sums.
  void end() {
    ++steps_;
    seconds_ += now() - began_;
    wait_ += waited() - waited_;
  }
  // Steps since the last take().
  int64_t steps() const { return steps_; }
  // Returns the means over the steps since the last call; there must be at least one.
  Means take() {
    const auto steps = static_cast<double>(std::exchange(steps_, 0));
    const double seconds = std::exchange(seconds_, 0), wait = std::exchange(wait_, 0);
    return {(seconds - wait) / steps, wait / steps};
  }

 private:
  // Monotonic seconds.
  static double now() { return static_cast<double>(comm::monotonic_ns()) / 1e9; }
  double waited() const { return waited_seconds_ ? waited_seconds_() : 0; }

  std::function<double()> waited_seconds_;
  double began_ = 0, waited_ = 0;  // start of the step, and the wait until then
  double seconds_ = 0, wait_ = 0;
  int64_t steps_ = 0;
};

}  // namespace megalith::observe
