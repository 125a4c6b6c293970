// The frame around the work of a rank: connect, run, leave; or tell the other ranks that it failed.
#pragma once

#include <functional>

#include "megalith/comm/store/restarts.h"
#include "megalith/parallel/parallel_context.h"
#include "megalith/parallel/runtime_settings.h"

namespace megalith::run {

// Runs `work` with the context of this rank and returns an exit code. An exception is printed, reported to the other
// ranks and turned into its exit code. A failure that merely echoes another rank's is printed only if Megalith's
// launcher does not report it.
int run_as_rank(const parallel::RuntimeSettings& settings, const std::function<void(parallel::ParallelContext&)>& work);

// The work of one start of a job.
using StartWork = std::function<void(const comm::RankLaunch& launch, parallel::ParallelContext& context)>;
// Does the same for a rank that may be restarted in its process: if another rank has failed, everything is released,
// and `work` runs again in the next start of the job, with a new context. A rank that has failed itself, or whose
// device no longer works, ends its process.
int run_as_rank(const parallel::RuntimeSettings& settings, comm::RankLaunch launch, const StartWork& work);

}  // namespace megalith::run
