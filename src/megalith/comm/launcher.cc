#include "megalith/comm/launcher.h"

#include <ATen/Parallel.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>
#include <vector>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/comm/child_output.h"
#include "megalith/comm/rendezvous.h"
#include "megalith/comm/store_link.h"

namespace megalith::comm {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// After a failure the other ranks have this long to end by themselves, with their own clean-up.
constexpr milliseconds kSettle{4000};

constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

struct Child {
  pid_t pid = -1;
  int rank = 0;
  bool running = true;
  std::vector<ChildOutput> output;  // stdout, stderr; empty when they go to a file or straight through
};

std::string signal_name(int signal) {
  const char* abbreviation = sigabbrev_np(signal);
  return fmt::format("signal {} (SIG{})", signal, abbreviation == nullptr ? "?" : abbreviation);
}

std::string describe_exit(int status) {
  if (WIFSIGNALED(status)) {
    std::string text = fmt::format("was killed by {}", signal_name(WTERMSIG(status)));
    if (WTERMSIG(status) == SIGKILL) text += "; if nobody did that, the machine may have run out of memory (see dmesg)";
    return text;
  }
  return fmt::format("ended with exit code {}", WEXITSTATUS(status));
}

int exit_code(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 1; }

// A socket that listens for the store's clients; the port it got is in `port`.
int listen_for_store(const LaunchOptions& options, int& port) {
  const bool local = options.nnodes == 1;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  check<CommError>(fd >= 0, "cannot make a socket: {}", std::strerror(errno));
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(options.master_port));
  address.sin_addr.s_addr = htonl(local ? INADDR_LOOPBACK : INADDR_ANY);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || listen(fd, 1024) != 0) {
    const std::string reason = std::strerror(errno);
    close(fd);
    throw CommError(
        fmt::format("cannot listen on port {} of {} (interface {}): {}. Another program may be using it: choose"
                    " another --master_port{}.",
                    options.master_port, local ? "127.0.0.1" : "this machine", local ? "lo" : "any", reason,
                    local ? ", or leave it out to get a free one" : " on all machines"));
  }
  socklen_t length = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  port = ntohs(address.sin_port);
  return fd;
}

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (int signal : kForwarded) sigaddset(&set, signal);
  return set;
}

class Launcher {
 public:
  Launcher(const LaunchOptions& options, const std::function<int()>& rank_main)
      : options_(options), rank_main_(rank_main) {}

  int run();

 private:
  void start(int local_rank);
  [[noreturn]] void become_rank(int local_rank, int out, int err);
  void serve_or_join_store();
  void loop();
  void handle_signal(int signal);
  void reap();
  void on_child_end(Child& child, int status);
  void signal_children(int signal, const Child* except = nullptr);
  void enforce_deadlines();
  void look_for_failure();
  void begin_end(const Failure& failure);
  Child* child_of(int rank);
  void wait_for_other_machines();
  void say(const std::string& text) const;
  void report() const;
  bool any_running() const;

  const LaunchOptions& options_;
  const std::function<int()>& rank_main_;
  const pid_t launcher_pid_ = getpid();
  int port_ = 0;
  int listen_fd_ = -1;
  int signal_fd_ = -1;
  sigset_t old_mask_{};
  std::vector<Child> children_;
  c10::intrusive_ptr<c10d::Store> store_;

  // The end of the run, once it is known.
  std::optional<Failure> first_;     // the first failure, here or on another machine
  std::optional<int> first_status_;  // how that rank ended, if it is one of ours
  int ended_by_signal_ = 0;
  bool all_ended_well_ = true;  // of the children that have ended
  std::optional<Clock::time_point> terminate_at_, kill_at_;
};

int Launcher::run() {
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

  // Signals are read from a descriptor, so that nothing happens in a handler. Children take the old mask back.
  const sigset_t watched = watched_signals();
  pthread_sigmask(SIG_BLOCK, &watched, &old_mask_);
  signal_fd_ = signalfd(-1, &watched, SFD_NONBLOCK | SFD_CLOEXEC);
  std::fflush(nullptr);
  children_.reserve(static_cast<size_t>(options_.nproc));
  try {
    for (int local_rank = 0; local_rank < options_.nproc; ++local_rank) start(local_rank);
    serve_or_join_store();  // makes threads: only now
  } catch (...) {
    for (const Child& child : children_) kill(child.pid, SIGKILL);
    for (const Child& child : children_) waitpid(child.pid, nullptr, 0);
    pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
    throw;
  }
  loop();
  wait_for_other_machines();
  report();
  close(signal_fd_);
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
  if (ended_by_signal_ != 0) return all_ended_well_ ? 0 : 128 + ended_by_signal_;
  if (!first_) return 0;
  return first_status_ ? exit_code(*first_status_) : 1;
}

void Launcher::start(int local_rank) {
  const int rank = options_.node_rank * options_.nproc + local_rank;
  int out[2] = {-1, -1}, err[2] = {-1, -1};
  const bool to_file = !options_.log_dir.empty();
  if (to_file) {
    const std::string path = fmt::format("{}/rank-{}.log", options_.log_dir, rank);
    out[1] = err[1] = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    check<ConfigError>(out[1] >= 0, "cannot write {}: {}", path, std::strerror(errno));
  } else {
    check<CommError>(pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0, "cannot make pipes: {}",
                     std::strerror(errno));
  }
  const bool talks = rank == 0 && options_.rank0_talks && !to_file;
  const pid_t pid = fork();
  check<CommError>(pid >= 0, "cannot start rank {}: {}", rank, std::strerror(errno));
  if (pid == 0) become_rank(local_rank, out[1], talks ? STDERR_FILENO : err[1]);

  Child child;
  child.pid = pid;
  child.rank = rank;
  close(out[1]);
  if (!to_file) {
    close(err[1]);
    const std::string prefix = options_.nproc * options_.nnodes == 1 ? "" : fmt::format("[rank {}] ", rank);
    for (int fd : {out[0], err[0]}) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    // What rank 0 writes to stdout is the command's data, as it is.
    child.output.emplace_back(out[0], STDOUT_FILENO, rank == 0 ? "" : prefix);
    child.output.emplace_back(err[0], STDERR_FILENO, prefix);
  }
  children_.push_back(std::move(child));
}

void Launcher::become_rank(int local_rank, int out, int err) {
  // Goes with the launcher, however that ends. (Should it have ended already, the parent is another process by now.)
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher_pid_) _exit(1);
  setpgid(0, 0);  // a Ctrl-C reaches the launcher alone, which passes it on once
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  close(signal_fd_);
  if (listen_fd_ >= 0) close(listen_fd_);
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);

  const auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), 1); };
  set("RANK", std::to_string(options_.node_rank * options_.nproc + local_rank));
  set("WORLD_SIZE", std::to_string(options_.nnodes * options_.nproc));
  set("LOCAL_RANK", std::to_string(local_rank));
  set("LOCAL_WORLD_SIZE", std::to_string(options_.nproc));
  set("MASTER_ADDR", options_.node_rank == 0 && options_.nnodes == 1 ? "127.0.0.1" : options_.master_addr);
  set("MASTER_PORT", std::to_string(port_));
  set("MEGALITH_LAUNCHER", "1");
  unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (!env_string("OMP_NUM_THREADS")) at::set_num_threads(std::max(1, cores / options_.nproc));

  int code = 1;
  try {
    code = rank_main_();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
  }
  std::fflush(nullptr);
  _exit(code);
}

void Launcher::serve_or_join_store() {
  prepare_c10d();
  if (options_.node_rank == 0) {
    c10d::TCPStoreOptions store;
    store.port = static_cast<uint16_t>(port_);
    store.isServer = true;
    store.waitWorkers = false;
    store.masterListenFd = listen_fd_;
    store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", store);
  } else {
    Rendezvous place;
    place.rank = options_.node_rank * options_.nproc;
    place.master_addr = options_.master_addr;
    place.master_port = port_;
    store_ = connect_store(place, std::chrono::seconds(60));
  }
}

bool Launcher::any_running() const {
  return std::ranges::any_of(children_, [](const Child& child) { return child.running; });
}

void Launcher::loop() {
  const auto open_output = [&] {
    return std::ranges::any_of(children_, [](const Child& child) {
      return std::ranges::any_of(child.output, [](const ChildOutput& output) { return !output.at_end(); });
    });
  };
  // Output of a dead rank is read to its end, unless a grandchild holds the pipe open.
  std::optional<Clock::time_point> drain_until;
  while (any_running() || (open_output() && Clock::now() < *drain_until)) {
    std::vector<pollfd> fds{{signal_fd_, POLLIN, 0}};
    for (Child& child : children_)
      for (ChildOutput& output : child.output)
        if (!output.at_end()) fds.push_back({output.source(), POLLIN, 0});
    poll(fds.data(), fds.size(), 100);

    signalfd_siginfo info;
    while (read(signal_fd_, &info, sizeof info) == sizeof info) handle_signal(static_cast<int>(info.ssi_signo));
    look_for_failure();  // before the output: what comes after the first failure is its echo
    for (Child& child : children_)
      for (ChildOutput& output : child.output) output.pump();
    reap();
    enforce_deadlines();
    if (!any_running() && !drain_until) drain_until = Clock::now() + milliseconds(500);
  }
}

void Launcher::handle_signal(int signal) {
  if (signal == SIGCHLD) return;
  if (signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGHUP) return signal_children(signal);
  if (ended_by_signal_ != 0) return signal_children(SIGKILL);
  ended_by_signal_ = signal;
  signal_children(signal);
  if (options_.kill_after_signal) kill_at_ = Clock::now() + options_.grace;
}

void Launcher::signal_children(int signal, const Child* except) {
  for (const Child& child : children_) {
    // A child becomes the leader of its group a moment after the fork: until then it is reached alone.
    if (child.running && &child != except && kill(-child.pid, signal) != 0) kill(child.pid, signal);
  }
}

void Launcher::reap() {
  int status = 0;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
    for (Child& child : children_)
      if (child.pid == pid) on_child_end(child, status);
}

void Launcher::on_child_end(Child& child, int status) {
  child.running = false;
  kill(-child.pid, SIGKILL);  // what the rank itself may have started
  look_for_failure();
  for (ChildOutput& output : child.output) output.pump();
  if (status != 0) all_ended_well_ = false;
  if (status == 0 || ended_by_signal_ != 0) return;
  if (!first_) {
    // It did not live to tell: we do.
    const std::string machine = options_.nnodes > 1 ? fmt::format(" on machine {}", options_.node_rank) : "";
    const Failure failure{child.rank, fmt::format("rank {}{} {}", child.rank, machine, describe_exit(status))};
    try {
      report_failure_in(*store_, failure);
    } catch (const std::exception&) {
      // The store is gone with machine 0; everybody ends anyway.
    }
    begin_end(failure);
  }
  if (first_->rank == child.rank) first_status_ = status;
}

Child* Launcher::child_of(int rank) {
  const auto found = std::ranges::find(children_, rank, &Child::rank);
  return found == children_.end() ? nullptr : &*found;
}

void Launcher::begin_end(const Failure& failure) {
  first_ = failure;
  const Child* culprit = child_of(failure.rank);
  for (Child& child : children_)
    for (ChildOutput& output : child.output)
      if (&child != culprit) output.mute();
  terminate_at_ = Clock::now() + kSettle;
}

// A rank that can tell its failure does so in the store, before it ends.
void Launcher::look_for_failure() {
  if (first_ || ended_by_signal_ != 0 || !store_) return;
  try {
    if (const auto failure = failure_in(*store_)) begin_end(*failure);
  } catch (const std::exception&) {
    begin_end({-1, fmt::format("machine 0 ({}:{}) does not answer any more", options_.master_addr, port_)});
  }
}

void Launcher::enforce_deadlines() {
  if (terminate_at_ && Clock::now() >= *terminate_at_) {
    terminate_at_.reset();
    // The one that failed first is ending by itself and may still have something to say.
    signal_children(SIGTERM, first_ ? child_of(first_->rank) : nullptr);
    kill_at_ = Clock::now() + options_.grace;
  }
  if (kill_at_ && Clock::now() >= *kill_at_) {
    kill_at_.reset();
    signal_children(SIGKILL);
  }
}

void Launcher::wait_for_other_machines() {
  // The store must live until every machine has read its last word.
  if (options_.nnodes == 1) return;
  try {
    store_->add("megalith/launchers_done", 1);
    const auto deadline = Clock::now() + options_.grace;
    while (options_.node_rank == 0 && store_->add("megalith/launchers_done", 0) < options_.nnodes &&
           Clock::now() < deadline)
      std::this_thread::sleep_for(milliseconds(20));
  } catch (const std::exception&) {
    // Machine 0 has gone already: nothing to wait for.
  }
}

void Launcher::say(const std::string& text) const { fmt::print(stderr, "megalith: {}\n", text); }

void Launcher::report() const {
  if (ended_by_signal_ != 0 && all_ended_well_) return;
  if (ended_by_signal_ != 0) return say(fmt::format("ended by {}", signal_name(ended_by_signal_)));
  if (!first_) return;
  if (!first_status_) {
    const bool ours = std::ranges::find(children_, first_->rank, &Child::rank) != children_.end();
    return say(fmt::format("{}{}", ours ? "" : "another machine failed first: ", first_->reason));
  }
  std::string text = fmt::format("rank {} {}", first_->rank, describe_exit(*first_status_));
  if (children_.size() > 1) text += "; it was the first to fail, the others were ended";
  size_t muted = 0;
  for (const Child& other : children_)
    for (const ChildOutput& output : other.output) muted += output.muted_lines();
  if (muted > 0) text += fmt::format(" ({} lines of theirs left out; --log_dir keeps all)", muted);
  if (!options_.log_dir.empty()) text += fmt::format("; see {}/rank-{}.log", options_.log_dir, first_->rank);
  say(text);
}

}  // namespace

void LaunchOptions::validate() const {
  std::string problems;
  const auto refuse = [&](std::string text) { problems += (problems.empty() ? "" : "\n") + std::move(text); };
  if (nproc < 1) refuse(fmt::format("--nproc is {}; it must be at least 1", nproc));
  if (nnodes < 1) refuse(fmt::format("--nnodes is {}; it must be at least 1", nnodes));
  if (node_rank < 0 || node_rank >= std::max(nnodes, 1))
    refuse(fmt::format("--node_rank is {}; with --nnodes {} it goes from 0 to {}", node_rank, nnodes, nnodes - 1));
  if (master_port < 0 || master_port > 65535)
    refuse(fmt::format("--master_port is {}; ports go up to 65535", master_port));
  if (nnodes > 1 && master_port == 0) refuse("--nnodes above 1 needs --master_port: a port that is free on machine 0");
  if (nnodes > 1 && master_addr == "127.0.0.1" && node_rank > 0)
    refuse("--nnodes above 1 needs --master_addr: the name or address of machine 0");
  if (!problems.empty()) throw ConfigError(problems);
}

int launch_ranks(const LaunchOptions& options, const std::function<int()>& rank_main) {
  options.validate();
  return Launcher(options, rank_main).run();
}

}  // namespace megalith::comm
