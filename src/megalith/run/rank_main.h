// The frame around the work of a rank: connect, run, leave; or tell the other ranks that it failed.
#pragma once

#include <functional>

#include "megalith/parallel/parallel_context.h"
#include "megalith/parallel/runtime_settings.h"

namespace megalith::run {

// Runs `work` with the context of this rank and returns an exit code. An exception is printed, reported to the other
// ranks and turned into its exit code. A failure that merely echoes another rank's is printed only if Megalith's
// launcher does not report it.
int run_as_rank(const parallel::RuntimeSettings& settings, const std::function<void(parallel::ParallelContext&)>& work);

}  // namespace megalith::run
