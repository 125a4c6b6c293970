// RerunSettings: selects the results of a step to check, and the reaction to a suspicious one (faults/rerun_guard.h).
#pragma once

#include "megalith/config/enums.h"

namespace megalith::train {

// The diagnosis of an injected fault when the step is run again.
enum class InjectedFault {
  kCorrectResult,    // the same value everywhere: the program is at fault
  kTransientError,   // another value on the same device
  kPersistentError,  // the same value on this device, another one elsewhere
};

// See faults/result_check.h for the checks. With all three checks off nothing is ever rerun.
struct RerunSettings {
  config::RerunMode mode = config::RerunMode::kValidateResults;
  bool check_for_nan = true;           // reject losses and gradients that are not finite
  bool check_for_spiky_loss = false;   // reject losses far above the largest seen
  bool check_for_large_grads = false;  // reject gradients far above the largest seen
  double injection_rate = 0;           // n > 0: about one of n checks fails although nothing is wrong; 0: none
  InjectedFault injection = InjectedFault::kTransientError;
};

}  // namespace megalith::train
