// Which results of a step are looked at, and what a suspicious one triggers (faults/rerun_guard.h).
#pragma once

#include "megalith/config/choices.h"

namespace megalith::train {

// What a fault that is injected on purpose turns out to be when the step is run again.
enum class InjectedFault { kCorrectResult, kTransientError, kPersistentError };

struct RerunSettings {
  config::RerunMode mode = config::RerunMode::kValidateResults;
  bool check_for_nan = true;           // losses and gradients that are not finite
  bool check_for_spiky_loss = false;   // losses far above the largest seen
  bool check_for_large_grads = false;  // likewise gradients
  double injection_rate = 0;           // n: about one of n checks fails although nothing is wrong; 0: none
  InjectedFault injection = InjectedFault::kTransientError;
};

}  // namespace megalith::train
