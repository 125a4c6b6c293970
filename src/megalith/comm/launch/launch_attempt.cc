// Starts the ranks of this machine and forwards their output and signals; launch_watch.cc decides when one has failed.
//
// A single-threaded event loop over a signalfd, the ranks' pipes and a timer of 100 ms. Ranks are forked before the
// store's server thread exists, since a fork copies only the calling thread. The launcher listens on the store's port
// before it forks, so ranks can connect while the server is still starting: the kernel queues them.
//
// No rank outlives the launcher: PR_SET_PDEATHSIG kills it when the launcher dies, and each rank leads its own process
// group, so that its own children can be killed with it.
#include "megalith/comm/launch/launch_attempt_internal.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/comm/launch/store_listener_internal.h"
#include "megalith/comm/store/process_settings.h"
#include "megalith/comm/store/rendezvous.h"
#include "megalith/comm/store_link_internal.h"

namespace megalith::comm {

namespace {

// Signals with which users and schedulers address a job; each rank gets them as if it had been addressed itself.
constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

// A rank that was killed by a signal has no exit code; the header promises 1 for it.
int exit_code(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 1; }

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (int signal : kForwarded) sigaddset(&set, signal);
  return set;
}

}  // namespace

void print_launcher_message(const std::string& text) { fmt::print(stderr, "megalith: {}\n", text); }

LaunchAttempt::LaunchAttempt(const LaunchOptions& options, const RankMain& rank_main, HeartbeatPage& page,
                             RankLaunch launch, JobLimits& limits, int shift, std::vector<RankProcess> survivors)
    : options_(options),
      rank_main_(rank_main),
      page_(page),
      launch_(std::move(launch)),
      limits_(limits),
      shift_(shift),
      launcher_pid_(getpid()),
      children_(std::move(survivors)) {}

AttemptEnd LaunchAttempt::run() {
  started_ = Clock::now();
  raise_file_limit();  // the store's connections end here; ranks inherit the limit
  if (options_.node_rank == 0) {
    listen_fd_ = listen_for_store(options_, port_);
  } else {
    port_ = options_.master_port;
  }
  if (!options_.log_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options_.log_dir, error);
    check<ConfigError>(!error, "--log_dir {} cannot be made: {}", options_.log_dir, error.message());
  }

  // Signals are read from a descriptor, so that no code runs in a handler. Children restore the old mask.
  const sigset_t watched = watched_signals();
  pthread_sigmask(SIG_BLOCK, &watched, &old_mask_);
  signal_fd_ = signalfd(-1, &watched, SFD_NONBLOCK | SFD_CLOEXEC);
  std::fflush(nullptr);
  children_.reserve(static_cast<size_t>(options_.nproc));
  try {
    // Hundreds of forks take seconds; a signal need not wait for the last one.
    for (int local_rank = 0; local_rank < options_.nproc && ended_by_signal_ == 0; ++local_rank) {
      if (std::ranges::find(children_, local_rank, &Child::local) == children_.end()) start(local_rank);
      take_signals();
    }
    if (options_.node_rank == 0) serve_store();  // starts threads, so only after the forks
    wake_survivors();
  } catch (...) {
    for (const Child& child : children_) kill(child.pid, SIGKILL);
    for (const Child& child : children_) waitpid(child.pid, nullptr, 0);
    pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
    throw;
  }
  loop();
  SeenTimes seen = SeenTimes::in(page_);
  seen.ended_well = all_ended_well_ && !first_;
  limits_.learn_from(seen);
  wait_for_other_machines();
  report();
  close(signal_fd_);
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
  store_.reset();  // ends its threads
  return end();
}

// Progress is read from rank 0's heartbeat, since all ranks run the same steps.
AttemptEnd LaunchAttempt::end() {
  AttemptEnd end{.on_request = ended_by_signal_ != 0 || asked_to_stop_, .failure = first_, .failed_ns = failed_ns_};
  const HeartbeatSlot& slot = page_.slot(0);
  if (slot.steps_done > 0) end.done = {slot.first_step, slot.step, static_cast<double>(slot.step_ns) / 1e9, 0};
  end.done.detect_seconds = detect_seconds_;
  if (ended_by_signal_ != 0)
    end.exit_code = all_ended_well_ ? 0 : 128 + ended_by_signal_;
  else if (first_)
    end.exit_code = first_status_ ? exit_code(*first_status_) : 1;
  for (Child& child : children_)
    if (child.running) end.survivors.push_back(std::move(child));
  return end;
}

// Opens the rank's output before the fork, so that a failure to do so is the launcher's error and not the rank's.
void LaunchAttempt::start(int local_rank) {
  const int rank = options_.node_rank * options_.nproc + local_rank;
  int out[2] = {-1, -1}, err[2] = {-1, -1};
  const bool to_file = !options_.log_dir.empty();
  if (to_file) {
    const std::string path = fmt::format("{}/rank-{}.log", options_.log_dir, rank);
    out[1] = err[1] = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    check<ConfigError>(out[1] >= 0, "cannot write {}: {}", path, std::strerror(errno));
  } else {
    check<CommError>(pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0, "cannot create pipes: {}",
                     std::strerror(errno));
  }
  // The terminal itself, not a pipe: only so can rank 0 overwrite its live line.
  const bool talks = rank == 0 && options_.rank0_talks && !to_file;
  auto [link, ranks_link] = options_.in_process ? RestartLink::make() : std::pair<RestartLink, RestartLink>();
  const pid_t pid = fork();
  check<CommError>(pid >= 0, "cannot start rank {}: {}", rank, std::strerror(errno));
  if (pid == 0) become_rank(local_rank, out[1], talks ? STDERR_FILENO : err[1], ranks_link);

  Child child;
  child.pid = pid;
  child.rank = rank;
  child.local = local_rank;
  child.link = std::move(link);
  close(out[1]);
  if (!to_file) {
    close(err[1]);
    const std::string prefix = options_.nproc * options_.nnodes == 1 ? "" : fmt::format("[rank {}] ", rank);
    for (int fd : {out[0], err[0]}) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    // Rank 0's stdout is the command's data and stays unchanged.
    child.output.emplace_back(out[0], STDOUT_FILENO, rank == 0 ? "" : prefix);
    child.output.emplace_back(err[0], STDERR_FILENO, prefix);
  }
  children_.push_back(std::move(child));
}

// The child's side of the fork; never returns. _exit skips the destructors and atexit handlers of the launcher, which
// are not the child's to run.
void LaunchAttempt::become_rank(int local_rank, int out, int err, const RestartLink& link) {
  // Dies with the launcher, however that ends. (If it has already ended, the parent is another process by now.)
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher_pid_) _exit(1);
  setpgid(0, 0);  // a Ctrl-C reaches only the launcher, which forwards it once
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  close(signal_fd_);
  if (listen_fd_ >= 0) close(listen_fd_);
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);

  const auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), 1); };
  set("RANK", std::to_string(options_.node_rank * options_.nproc + local_rank));
  set("WORLD_SIZE", std::to_string(options_.nnodes * options_.nproc));
  set("LOCAL_RANK", std::to_string((local_rank + shift_) % options_.nproc));
  set("LOCAL_WORLD_SIZE", std::to_string(options_.nproc));
  set("MASTER_ADDR", options_.nnodes == 1 || options_.master_addr.empty() ? "127.0.0.1" : options_.master_addr);
  set("MASTER_PORT", std::to_string(port_));
  set("MEGALITH_LAUNCHER", "1");
  const int rank = options_.node_rank * options_.nproc + local_rank;
  if (const auto host = nccl_host_of_rank(env_string("NCCL_HOSTID"), rank)) set("NCCL_HOSTID", *host);
  // A launcher that itself runs under torchrun must not pass on the agent's store: its ranks use the launcher's.
  unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  // Without this each rank would start a thread per core, and they would all get in each other's way.
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (!env_string("OMP_NUM_THREADS")) at::set_num_threads(std::max(1, cores / options_.nproc));

  int code = 1;
  try {
    RankLaunch launch = launch_;
    launch.heartbeat = Heartbeat(page_.slot(local_rank));
    launch.has_first_word = [this] { return page_.claim_first_word(); };
    if (options_.in_process) launch.wait_for_next_start = [&link](RankLaunch& next) { return link.park(next); };
    code = rank_main_(launch);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
  }
  std::fflush(nullptr);
  _exit(code);
}

// Machine 0 serves the store on the socket it already listens on; the others connect to it, to hear of failures.
void LaunchAttempt::serve_store() {
  prepare_c10d();
  c10d::TCPStoreOptions store;
  store.port = static_cast<uint16_t>(port_);
  store.isServer = true;
  store.waitWorkers = false;
  store.masterListenFd = listen_fd_;
  store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", store);
}

// Each attempt is short, so that the event loop stays alive: machine 0 may be started minutes later, and until then
// this launcher must obey signals.
void LaunchAttempt::join_store() {
  constexpr std::chrono::milliseconds kAttempt{100}, kPause{400};
  constexpr std::chrono::seconds kSlack{5};  // for the ranks, whose message says more
  if (store_ || first_ || options_.node_rank == 0 || Clock::now() < next_question_) return;
  prepare_c10d();
  Rendezvous place;
  place.rank = options_.node_rank * options_.nproc;
  place.master_addr = options_.master_addr;
  place.master_port = port_;
  try {
    store_ = connect_store(place, kAttempt);
    store_->add(kLaunchersKey, 1);
  } catch (const std::exception& error) {
    store_.reset();
    next_question_ = Clock::now() + kPause;
    if (Clock::now() > started_ + options_.connect_timeout + kSlack)
      begin_end({-1, fmt::format("machine 0 ({}:{}) does not answer", options_.master_addr, port_)});
  }
}

// Survivors connect like ranks that were just forked, and show what they say again.
void LaunchAttempt::wake_survivors() {
  for (Child& child : children_) {
    if (!child.parked) continue;
    child.parked = false;
    for (ChildOutput& output : child.output) output.unmute();
    child.link.send_next_start(port_, launch_);
  }
}

void end_parked(std::vector<RankProcess>& ranks) {
  for (const RankProcess& rank : ranks) kill(-rank.pid, SIGKILL);
  for (const RankProcess& rank : ranks) waitpid(rank.pid, nullptr, 0);
  ranks.clear();
}

bool LaunchAttempt::any_running() const {
  return std::ranges::any_of(children_, [](const Child& child) { return child.running && !child.parked; });
}

void LaunchAttempt::loop() {
  const auto open_output = [&] {
    return std::ranges::any_of(children_, [](const Child& child) {
      return !child.parked &&
             std::ranges::any_of(child.output, [](const ChildOutput& output) { return !output.at_end(); });
    });
  };
  // The output of a dead rank is read to its end, unless a grandchild holds the pipe open.
  std::optional<Clock::time_point> drain_until;
  while (any_running() || (open_output() && Clock::now() < *drain_until)) {
    std::vector<pollfd> fds{{signal_fd_, POLLIN, 0}};
    for (Child& child : children_)
      for (ChildOutput& output : child.output)
        if (!output.at_end()) fds.push_back({output.source(), POLLIN, 0});
    for (const Child& child : children_)
      if (child.running && !child.parked && child.link.descriptor() >= 0)
        fds.push_back({child.link.descriptor(), POLLIN, 0});
    poll(fds.data(), fds.size(), 100);

    take_signals();
    join_store();
    look_for_failure();  // before the output: lines after the first failure are its consequences
    learn_limits();
    look_for_hangs();
    say_when_it_runs_again();
    for (Child& child : children_)
      for (ChildOutput& output : child.output) output.pump();
    reap();
    for (Child& child : children_)
      if (child.running && !child.parked && child.link.descriptor() >= 0) child.parked = child.link.take_parked();
    enforce_deadlines();
    if (!any_running() && !drain_until) drain_until = Clock::now() + std::chrono::milliseconds(500);
  }
}

void LaunchAttempt::take_signals() {
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof info) == sizeof info) handle_signal(static_cast<int>(info.ssi_signo));
}

// The first SIGINT or SIGTERM is forwarded, so that ranks can save if they have something to save; the second kills.
void LaunchAttempt::handle_signal(int signal) {
  if (signal == SIGCHLD) return;
  if (signal == SIGUSR1) asked_to_stop_ = true;
  if (signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGHUP) return signal_children(signal);
  if (ended_by_signal_ != 0) {
    leaves_at_once_ = true;
    return signal_children(SIGKILL);
  }
  ended_by_signal_ = signal;
  if (has_nothing_to_save()) return end_in_setup();
  signal_children(signal);
  if (options_.kill_after_signal) kill_at_ = Clock::now() + options_.grace;
}

void LaunchAttempt::signal_children(int signal, const Child* except) {
  for (const Child& child : children_) {
    // A child becomes the leader of its group a moment after the fork; until then it is signaled alone.
    if (child.running && !child.parked && &child != except && kill(-child.pid, signal) != 0) kill(child.pid, signal);
  }
}

// WUNTRACED and WCONTINUED also report stops, which tell a debugger's SIGSTOP from a hang.
void LaunchAttempt::reap() {
  int status = 0;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0;)
    for (Child& child : children_) {
      if (child.pid != pid) continue;
      if (WIFSTOPPED(status))
        child.stopped_at = Clock::now();
      else if (WIFCONTINUED(status))
        child.stopped_at.reset();
      else
        on_child_end(child, status);
    }
}

}  // namespace megalith::comm
