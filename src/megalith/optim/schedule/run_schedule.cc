#include "megalith/optim/schedule/run_schedule.h"

#include "megalith/base/error.h"

namespace megalith::optim {

// One function cannot give two rates; which of them it meant would be a guess.
RunSchedule RunSchedule::with(RateFunctions functions) const {
  check<ConfigError>(!functions.lr || groups.size() == 1,
                     "decoupled_lr is {}, and this program gives the learning rate as one function for all parameters;"
                     " leave out one of them",
                     groups.back().max_lr.value_or(0));
  RunSchedule changed = *this;
  changed.schedule = LrSchedule(schedule.params(), {}, std::move(functions));
  return changed;
}

}  // namespace megalith::optim
