// The outermost layer of a rank: connects, runs the work, and turns what it throws into an exit code and a report to
// the other ranks. A rank that fails tells the others why, so that they end with that reason and not with a timeout.
#include "megalith/run/rank_main.h"

#include <fmt/format.h>
#include <unistd.h>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/parallel/runtime.h"
#include "megalith/run/exit_code.h"
#include "megalith/train/faults/rerun_guard.h"

namespace megalith::run {

namespace {

// Ends the process when the run is over but the rank's own thread is stuck (on a GPU, in a long computation) and cannot
// be stopped in another way.
void end_process(const std::string& reason) {
  fmt::print(stderr, "megalith: the run is over: {}\n", reason);
  std::fflush(nullptr);
  _exit(kFailed);
}

}  // namespace

int run_as_rank(const parallel::RuntimeSettings& settings,
                const std::function<void(parallel::ParallelContext&)>& work) {
  parallel::Runtime runtime;
  try {
    work(runtime.initialize(settings, end_process));
    runtime.shutdown();
    return kDone;
    // Another rank has failed and prints its own error; with our launcher, repeating it here would only add noise.
  } catch (const comm::PeerFailure& error) {
    log_to_file(error.what());
    if (!env_flag("MEGALITH_LAUNCHER")) fmt::print(stderr, "megalith: {}\n", error.what());
    return kFailed;
  } catch (const train::RerunExit& exit) {
    // All ranks know; only the one that found the problem prints it.
    const parallel::ParallelContext& context = runtime.context();
    if (context.rank() == exit.facts().rank) fmt::print(stderr, "megalith: {}\n", exit.what());
    context.world().report_failure(exit.what(), exit.facts().rank);
    return exit_code_of(exit);
  } catch (const std::exception& error) {
    fmt::print(stderr, "megalith: {}\n", error.what());
    log_to_file(error.what());
    if (runtime.is_initialized()) {
      const parallel::ParallelContext& context = runtime.context();
      context.world().report_failure(fmt::format("rank {}: {}", context.rank(), error.what()));
    }
    return exit_code_of(error);
  }
}

}  // namespace megalith::run
