// The last words of a run that was asked to stop: how to continue it.
#pragma once

#include <string>

#include "megalith/run/resolve/run_plan.h"

namespace megalith::run {

// Returns what to do to continue the run of this plan from its newest checkpoint, by the rules of its command; or why
// that is not possible. One line, without a line break.
std::string how_to_continue(const RunPlan& plan);

}  // namespace megalith::run
