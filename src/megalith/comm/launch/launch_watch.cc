// How a launcher reacts to ranks that end, hang or report a failure: it finds the first, tells the others, ends them by
// force if necessary, and tells the user.
//
// The end of a run has four stages. begin_end() records the first failure and mutes the other ranks, whose errors are
// its consequences. They have kSettle to end by themselves; then SIGTERM; after `grace`, SIGKILL.
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <thread>

#include "megalith/comm/launch/launch_attempt_internal.h"
#include "megalith/comm/store_link_internal.h"

namespace megalith::comm {

namespace {

using std::chrono::milliseconds;

// How often signs of life are checked.
constexpr milliseconds kLook{200};

// Pause between two attempts to reach a store that has not answered.
constexpr milliseconds kRetry{2000};

// After a failure, the other ranks have this long to end by themselves, with their own cleanup.
constexpr milliseconds kSettle{4000};

// A rank that keeps its process has this long to free what it holds. It is not asked to end (SIGTERM would stop the run
// after its next step), but killed if it is stuck.
constexpr milliseconds kUnwind{30000};

// After a signal, launchers of other machines have this long to take leave.
constexpr milliseconds kGoodbye{1000};

// "signal 9 (SIGKILL)".
std::string signal_name(int signal) {
  const char* abbreviation = sigabbrev_np(signal);
  return fmt::format("signal {} (SIG{})", signal, abbreviation == nullptr ? "?" : abbreviation);
}

// A SIGKILL that nobody sent is usually the kernel's out-of-memory killer.
std::string describe_exit(int status) {
  if (WIFSIGNALED(status)) {
    std::string text = fmt::format("was killed by {}", signal_name(WTERMSIG(status)));
    if (WTERMSIG(status) == SIGKILL) text += "; if nobody did that, the machine may have run out of memory (see dmesg)";
    return text;
  }
  return fmt::format("ended with exit code {}", WEXITSTATUS(status));
}

}  // namespace

// Combines what the rank says of itself (heartbeat) with what the kernel says of it (stopped).
RankSight LaunchAttempt::sight_of(const Child& child) const {
  const HeartbeatSlot& slot = page_.slot(child.local);
  RankSight sight{.rank = child.rank,
                  .section = static_cast<Section>(slot.section.load()),
                  .step = slot.step,
                  .steps_done = slot.steps_done,
                  .silent = std::chrono::nanoseconds(monotonic_ns() - slot.since_ns),
                  .stopped = std::nullopt};
  if (child.stopped_at) sight.stopped = Clock::now() - *child.stopped_at;
  return sight;
}

// "" means that the rank waits for nobody, which makes it the suspect; so a store that does not answer is not "".
std::string LaunchAttempt::waits_for(int rank) {
  try {
    return store_ ? waits_in(*store_, rank) : "";
  } catch (const std::exception&) {
    return "unknown: the store cannot be reached";  // look_for_failure decides whether it is gone
  }
}

// A rank that shows no sign of life for too long is killed: it would not react to a request.
void LaunchAttempt::look_for_hangs() {
  if (first_ || ended_by_signal_ != 0 || !limits_.current() || Clock::now() < next_look_) return;
  next_look_ = Clock::now() + kLook;
  const SectionLimits& limits = *limits_.current();
  std::vector<RankSight> all;
  for (const Child& child : children_)
    if (child.running && !child.parked) all.push_back(sight_of(child));
  std::vector<OverdueRank> overdue;
  for (const RankSight& late : overdue_ranks(all, limits)) overdue.push_back({late, waits_for(late.rank)});
  const auto culprit = find_culprit(overdue, limits);
  if (!culprit) return;
  const Failure failure{culprit->rank, culprit->reason};
  first_hangs_ = true;
  begin_end(failure);
  tell_all(failure);
  kill(-child_of(culprit->rank)->pid, SIGKILL);
}

// A save is the moment at which the reference learns, too: by then a rank has been through all sections but the end.
void LaunchAttempt::learn_limits() {
  const int64_t saves = page_.slot(0).saves;
  if (first_ || saves == saves_learned_) return;
  saves_learned_ = saves;
  limits_.learn_from(SeenTimes::in(page_));
}

void LaunchAttempt::say_when_it_runs_again() {
  if (said_it_runs_ || launch_.restarts == 0 || page_.slot(0).steps_done == 0) return;
  said_it_runs_ = true;
  print_launcher_message(fmt::format("running again: step {} is done, {:.1f} s after the failure was seen",
                                     page_.slot(0).first_step.load(),
                                     static_cast<double>(monotonic_ns() - launch_.failed_ns) / 1e9));
}

// A nonzero status is a failure unless a signal ended the run. The store is asked first: the rank may have reported its
// own reason, or another rank's.
void LaunchAttempt::on_child_end(Child& child, int status) {
  child.running = false;
  kill(-child.pid, SIGKILL);  // processes that the rank itself may have started
  look_for_failure();
  for (ChildOutput& output : child.output) output.pump();
  if (status != 0) all_ended_well_ = false;
  // The last section ends with the process.
  if (status == 0) Heartbeat(page_.slot(child.local)).enter(Section::kOutside, page_.slot(child.local).step);
  if (status == 0 || ended_by_signal_ != 0) return;
  if (!first_) {
    // It died before it could report its failure, so the launcher does.
    const std::string machine = options_.nnodes > 1 ? fmt::format(" on machine {}", options_.node_rank) : "";
    const Failure failure{child.rank, fmt::format("rank {}{} {}", child.rank, machine, describe_exit(status))};
    tell_all(failure);
    begin_end(failure);
  }
  if (first_->rank == child.rank) first_status_ = status;
}

// The ranks' watchdogs read it at their next beat and end their operations with this reason.
void LaunchAttempt::tell_all(const Failure& failure) {
  if (!store_) return;  // machine 0 has not been reached, so nobody listens
  try {
    report_failure_in(*store_, failure);
  } catch (const std::exception&) {
    // The store is gone with machine 0, or unreachable: the others notice by themselves.
  }
}

LaunchAttempt::Child* LaunchAttempt::child_of(int rank) {
  const auto child = std::ranges::find(children_, rank, &Child::rank);
  return child == children_.end() ? nullptr : &*child;
}

void LaunchAttempt::begin_end(const Failure& failure) {
  first_ = failure;
  failed_ns_ = monotonic_ns();
  const Child* culprit = child_of(failure.rank);
  for (Child& child : children_)
    for (ChildOutput& output : child.output)
      if (&child != culprit) output.mute();
  if (culprit != nullptr) detect_seconds_ = sight_of(*culprit).silent.count();
  if (options_.in_process)
    kill_at_ = Clock::now() + kUnwind;
  else
    terminate_at_ = Clock::now() + kSettle;
}

// A rank that can report its failure does so in the store, before it ends.
void LaunchAttempt::look_for_failure() {
  if (first_ || ended_by_signal_ != 0 || !store_ || Clock::now() < next_question_) return;
  try {
    if (const auto failure = failure_in(*store_)) begin_end(*failure);
    patience_.answered();
  } catch (const std::exception& error) {
    next_question_ = Clock::now() + kRetry;  // each attempt may take seconds, which delays the ranks' output
    if (patience_.is_gone_after(error))
      begin_end({-1, fmt::format("machine 0 ({}:{}) no longer answers", options_.master_addr, port_)});
  }
}

// Both deadlines are checked at every turn of the loop and fire once.
void LaunchAttempt::enforce_deadlines() {
  if (terminate_at_ && Clock::now() >= *terminate_at_) {
    terminate_at_.reset();
    // The rank that failed first is ending by itself and may still have something to say.
    signal_children(SIGTERM, first_ ? child_of(first_->rank) : nullptr);
    kill_at_ = Clock::now() + options_.grace;
  }
  if (kill_at_ && Clock::now() >= *kill_at_) {
    kill_at_.reset();
    signal_children(SIGKILL);
  }
}

bool LaunchAttempt::has_nothing_to_save() const {
  if (options_.kill_after_signal || !limits_.current()) return false;
  return std::ranges::any_of(children_,
                             [&](const Child& child) { return child.running && !has_begun(page_.slot(child.local)); });
}

// Ranks on other machines would wait for these ones, so they are told.
void LaunchAttempt::end_in_setup() {
  ended_in_setup_ = true;
  signal_children(SIGKILL);
  if (options_.nnodes > 1)
    tell_all({options_.node_rank * options_.nproc,
              fmt::format("machine {} was ended by {}", options_.node_rank, signal_name(ended_by_signal_))});
}

// The store must live until every machine has read the failure from it. After a signal only those that are there count,
// and they get a second: the sender of a signal waits for the end.
void LaunchAttempt::wait_for_other_machines() {
  if (options_.nnodes == 1 || !store_ || leaves_at_once_) return;
  try {
    const bool signaled = ended_by_signal_ != 0;
    store_->add("megalith/launchers_done", 1);
    const int64_t machines = signaled ? store_->add(kLaunchersKey, 0) + 1 : options_.nnodes;
    const auto deadline = Clock::now() + (signaled ? std::min(options_.grace, kGoodbye) : options_.grace);
    while (options_.node_rank == 0 && store_->add("megalith/launchers_done", 0) < machines && Clock::now() < deadline)
      std::this_thread::sleep_for(milliseconds(20));
  } catch (const std::exception&) {
    // Machine 0 is already gone: nothing to wait for.
  }
}

// One message: the first failure, where it happened, what was left out, and where to read on.
void LaunchAttempt::report() const {
  if (ended_by_signal_ != 0 && all_ended_well_) return;
  if (ended_by_signal_ != 0)
    return print_launcher_message(
        fmt::format("ended by {}{}", signal_name(ended_by_signal_),
                    ended_in_setup_ ? " before the first step; there was nothing to save" : ""));
  if (!first_) return;
  if (!first_status_) {
    const bool ours = std::ranges::find(children_, first_->rank, &Child::rank) != children_.end();
    return print_launcher_message(fmt::format("{}{}", ours ? "" : "another machine failed first: ", first_->reason));
  }
  std::string text =
      first_hangs_ ? first_->reason : fmt::format("rank {} {}", first_->rank, describe_exit(*first_status_));
  if (limits_.current() && !first_hangs_)
    text += fmt::format(", {}", place_of(sight_of(*std::ranges::find(children_, first_->rank, &Child::rank))));
  if (children_.size() > 1)
    text +=
        fmt::format("; it was the first to fail, the others {}", options_.in_process ? "were stopped" : "were ended");
  size_t muted = 0;
  for (const Child& other : children_)
    for (const ChildOutput& output : other.output) muted += output.muted_lines();
  if (muted > 0) text += fmt::format(" ({} of their lines are not shown; --log_dir keeps all)", muted);
  if (!options_.log_dir.empty()) text += fmt::format("; see {}/rank-{}.log", options_.log_dir, first_->rank);
  print_launcher_message(text);
}

}  // namespace megalith::comm
