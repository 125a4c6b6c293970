// What every rank of a command does around its own work: connect, run, leave; or tell the others that it failed.
#pragma once

#include <functional>

#include "megalith/parallel/parallel_context.h"
#include "megalith/parallel/runtime_settings.h"

namespace megalith::run {

// Runs `work` with this rank's context and returns an exit code. An error in `work` is printed, reported to the other
// ranks and turned into its exit code; the echo of another rank's failure is printed only when no launcher of ours does
// it.
int run_as_rank(const parallel::RuntimeSettings& settings, const std::function<void(parallel::ParallelContext&)>& work);

}  // namespace megalith::run
