// The outermost layer of a rank: connects, runs the work, and turns what it throws into an exit code and a report to
// the other ranks. A rank that fails tells the others why, so that they end with that reason and not with a timeout.
#include "megalith/run/rank_main.h"

#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <unistd.h>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/task_progress.h"
#include "megalith/base/text.h"
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

// Tells the other ranks that `culprit` has failed, unless an earlier failure is known, which is then told again.
// Returns whether this one is the first. The order is decided in one place, the store, so that the error that
// is printed and the rank that the launcher names belong together.
bool tell_others(comm::World& world, const std::string& reason, int culprit) {
  const std::string own_failure = fmt::format("{}\n{}", culprit, reason);
  std::string first = own_failure;
  try {
    first = world.claim("first failure", own_failure);
  } catch (const std::exception&) {
    // The store is gone; whatever is wrong, this rank has to say what it knows.
  }
  const size_t cut = first.find('\n');
  world.report_failure(first.substr(cut + 1), static_cast<int>(parse_int(first.substr(0, cut)).value_or(culprit)));
  return first == own_failure;
}

// The same mistake is usually found by every rank; with our launcher only the first of them says so, and the launcher
// names it. The others have it in their logs, unless they never connected.
void tell_error(const std::exception& error, parallel::Runtime& runtime, const std::function<bool()>& has_first_word) {
  log_to_file(error.what(), LogLevel::kError);
  const std::string text = error_text(error);
  if (runtime.is_initialized()) {
    const parallel::ParallelContext& context = runtime.context();
    const std::string reason = fmt::format("rank {}: {}", context.rank(), text);
    if (!tell_others(context.world(), reason, context.rank()) && env_flag("MEGALITH_LAUNCHER")) return;
  } else if (has_first_word && !has_first_word()) {
    return;
  }
  fmt::print(stderr, "megalith: {}\n", text);
}

// The end of a start on this rank.
struct RankEnd {
  int exit_code = kDone;
  bool survives = false;               // another rank has failed, not this one
  std::optional<at::Device> device{};  // the device that it used; std::nullopt if it was not connected
};

// Connects to the other ranks; the first one waits for all of them, and says how long that takes and for whom.
parallel::ParallelContext& connect(parallel::Runtime& runtime, const parallel::RuntimeSettings& settings) {
  const comm::Rendezvous place = comm::rendezvous_from_env();
  const bool waits = place.rank == 0 && place.world_size > 1;
  TaskProgress progress("connecting ranks", waits);
  parallel::ParallelContext& context = runtime.initialize(settings, end_process);
  if (waits)
    context.world().wait_for_all([&](const std::vector<int>& missing) {
      progress.remark(fmt::format("{} of {} have arrived, missing: {}", place.world_size - std::ssize(missing),
                                  place.world_size, list_in_words(missing)));
    });
  return context;
}

RankEnd run_once(const parallel::RuntimeSettings& settings, const std::function<void(parallel::ParallelContext&)>& work,
                 const std::function<bool()>& has_first_word = {}) {
  parallel::Runtime runtime;
  const auto device = [&] {
    return runtime.is_initialized() ? std::optional(runtime.context().device()) : std::nullopt;
  };
  try {
    work(connect(runtime, settings));
    runtime.shutdown();
    return {};
    // Another rank has failed and prints its own error; with our launcher, repeating it here would only add noise.
  } catch (const comm::PeerFailure& error) {
    log_to_file(error.what(), LogLevel::kError);
    if (!env_flag("MEGALITH_LAUNCHER")) fmt::print(stderr, "megalith: {}\n", error.what());
    return {.exit_code = kFailed, .survives = true, .device = device()};
  } catch (const train::RerunExit& exit) {
    // All ranks know; only the one that found the problem prints it.
    const parallel::ParallelContext& context = runtime.context();
    if (context.rank() == exit.facts().rank) fmt::print(stderr, "megalith: {}\n", exit.what());
    tell_others(context.world(), exit.what(), exit.facts().rank);
    return {.exit_code = exit_code_of(exit)};
  } catch (const std::exception& error) {
    tell_error(error, runtime, has_first_word);
    return {.exit_code = exit_code_of(error)};
  }
}

// A kernel that failed leaves the device unusable for the process: every later call fails, too. One that hangs blocks
// here, and the launcher ends the process.
bool still_works(at::Device device) {
  try {
    return at::ones({1}, at::TensorOptions(device)).item<float>() == 1;
  } catch (const std::exception& error) {
    log_warning("{} no longer works in this process: {}", device.str(), error.what());
    return false;
  }
}

}  // namespace

int run_as_rank(const parallel::RuntimeSettings& settings,
                const std::function<void(parallel::ParallelContext&)>& work) {
  return run_once(settings, work).exit_code;
}

int run_as_rank(const parallel::RuntimeSettings& settings, comm::RankLaunch launch, const StartWork& work) {
  while (true) {
    const RankEnd end = run_once(
        settings, [&](parallel::ParallelContext& context) { work(launch, context); }, launch.has_first_word);
    if (!end.survives || !launch.wait_for_next_start) return end.exit_code;
    if (end.device && !still_works(*end.device)) return end.exit_code;
    if (!launch.wait_for_next_start(launch)) return end.exit_code;
  }
}

}  // namespace megalith::run
