// LaunchAttempt: one start of the ranks of this machine, from the first fork to the end of the last rank.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <signal.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megalith/comm/launch/child_output.h"
#include "megalith/comm/launch/launcher.h"
#include "megalith/comm/launch/restart_link.h"
#include "megalith/comm/op/status_board.h"
#include "megalith/comm/store/lasting_store.h"

namespace megalith::comm {

// The time limits of a job's ranks, learned from one start to the next if the options ask for that. Without limits no
// rank is said to hang.
class JobLimits {
 public:
  explicit JobLimits(const LaunchOptions& options)
      : current_(options.limits), learning_(options.learning), keeps_(options.node_rank == 0) {}

  const std::optional<SectionLimits>& current() const { return current_; }
  // Must be called before ranks start: what they show is added to what was learned up to here.
  void begin_start();
  // Learns from what the ranks have shown, and keeps it if anything has changed.
  void learn_from(const SeenTimes& seen);

 private:
  std::optional<SectionLimits> current_;
  const std::optional<LimitLearning> learning_;
  const bool keeps_;      // this machine's launcher keeps the limits
  LearnedLimits before_;  // known when this start began
};

// A rank of this machine, as the launcher sees it.
struct RankProcess {
  pid_t pid = -1;
  int rank = 0;
  int local = 0;
  bool running = true;
  bool parked = false;                                              // waits for the next start
  std::optional<std::chrono::steady_clock::time_point> stopped_at;  // when SIGSTOP stopped it
  std::vector<ChildOutput> output;  // stdout, stderr; empty when they go to a file or directly to the terminal
  RestartLink link;                 // only with LaunchOptions::in_process
};
// Kills parked ranks, which have nothing left to do, and waits for their ends.
void end_parked(std::vector<RankProcess>& ranks);

// The outcome of an attempt.
struct AttemptEnd {
  int exit_code = 0;                 // see launch_ranks
  bool on_request = false;           // a signal ended it, so it is not started again
  std::optional<Failure> failure{};  // the first one
  Attempt done{};
  int64_t failed_ns = 0;                 // when the failure was seen
  std::vector<RankProcess> survivors{};  // parked ranks, for the next attempt
};

// Created and run once, while the process has no other threads; it has none when run() returns.
class LaunchAttempt {
 public:
  // `page` has a slot for each rank. `launch` is what the ranks are told, except for their heartbeat. Rank r gets the
  // device of local rank r + `shift`. `survivors` are parked ranks of the attempt before; the others are forked.
  LaunchAttempt(const LaunchOptions& options, const RankMain& rank_main, HeartbeatPage& page, RankLaunch launch,
                JobLimits& limits, int shift, std::vector<RankProcess> survivors);
  // Returns when all ranks of this machine have ended or, after a failure, are parked. Throws ConfigError for a bad
  // log_dir, CommError for a port in use.
  AttemptEnd run();

 private:
  using Clock = std::chrono::steady_clock;
  using Child = RankProcess;

  // The life of an attempt (launch_attempt.cc): forks, the event loop, signals, ends of children.
  void start(int local_rank);
  [[noreturn]] void become_rank(int local_rank, int out, int err, const RestartLink& link);
  void serve_store();
  // Tries once to reach the store of machine 0. Ranks try as well, for as long, and say why they could not.
  void join_store();
  void wake_survivors();
  void loop();
  void take_signals();
  void handle_signal(int signal);
  void end_in_setup();
  void reap();
  void on_child_end(Child& child, int status);
  void signal_children(int signal, const Child* except = nullptr);
  // Decisions about failures and hangs (launch_watch.cc).
  void enforce_deadlines();
  void look_for_failure();
  void look_for_hangs();
  // Learns time limits after each save of rank 0.
  void learn_limits();
  // Returns the signs of life of a rank, and what it waits for as posted in the store.
  RankSight sight_of(const Child& child) const;
  void say_when_it_runs_again();
  std::string waits_for(int rank);
  // Write a failure into the store for the other machines, and start the end of this attempt.
  void tell_all(const Failure& failure);
  void begin_end(const Failure& failure);
  Child* child_of(int rank);
  void wait_for_other_machines();
  void report() const;
  bool any_running() const;
  // Returns whether ranks would save at a signal, and some of them have not begun their first step.
  bool has_nothing_to_save() const;
  AttemptEnd end();

  const LaunchOptions& options_;
  const RankMain& rank_main_;
  HeartbeatPage& page_;
  const RankLaunch launch_;
  JobLimits& limits_;
  const int shift_;
  const pid_t launcher_pid_;
  int port_ = 0;
  int listen_fd_ = -1;
  int signal_fd_ = -1;
  sigset_t old_mask_{};
  std::vector<Child> children_;
  c10::intrusive_ptr<c10d::Store> store_;
  StorePatience patience_;
  Clock::time_point started_{}, next_look_{}, next_question_{};
  bool said_it_runs_ = false;
  int64_t saves_learned_ = 0;  // saves of rank 0 when limits were last learned

  // The end of the run, once it is known.
  std::optional<Failure> first_;     // the first failure, here or on another machine
  bool first_hangs_ = false;         // that rank hung and was killed
  std::optional<int> first_status_;  // how that rank ended, if it is one of ours
  int64_t failed_ns_ = 0;
  double detect_seconds_ = 0;
  int ended_by_signal_ = 0;
  bool ended_in_setup_ = false;  // that signal came before the first step
  bool leaves_at_once_ = false;  // a second one came
  bool asked_to_stop_ = false;   // SIGUSR1: ranks finish in an orderly way
  bool all_ended_well_ = true;   // true if every child that has ended succeeded
  std::optional<Clock::time_point> terminate_at_, kill_at_;
};

// Key of the store under which launchers of machines other than 0 are counted.
inline constexpr const char* kLaunchersKey = "megalith/launchers";

// Prints one line on stderr, marked as the launcher's.
void print_launcher_message(const std::string& text);

}  // namespace megalith::comm
