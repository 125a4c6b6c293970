// A job is a sequence of attempts. Each attempt forks all ranks from this process, which has loaded the program but
// holds no threads and no device, so a failed attempt leaves nothing behind that the next one could inherit. All that
// is kept is the page of heartbeats and the history that the ranks are told (RankLaunch).
#include "megalith/comm/launch/launcher.h"

#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/comm/launch/launch_attempt_internal.h"

namespace megalith::comm {

namespace {

// A whole job: attempts, until one succeeds or none may follow.
class Job {
 public:
  Job(const LaunchOptions& options, const RankMain& rank_main)
      : options_(options),
        rank_main_(rank_main),
        page_(options.nproc, options.limits ? options.limits->warmup_steps : 0),
        limits_(options) {
    launch_.started_ns = monotonic_ns();
    launch_.launcher_tells = true;
  }

  int run() {
    while (true) {
      // Signs of life of the last attempt must not count for this one.
      page_.restart();
      limits_.begin_start();
      AttemptEnd end =
          LaunchAttempt(options_, rank_main_, page_, launch_, limits_, shift_, std::move(survivors_)).run();
      survivors_ = std::move(end.survivors);
      launch_.earlier.push_back(end.done);
      if (!starts_again(end)) {
        end_parked(survivors_);
        if (launch_.restarts > 0) print_launcher_message(restarts_in_words(launch_, launch_.earlier));
        return end.exit_code;
      }
      // A device that computes wrong numbers would do so again: the ranks move on by one device.
      if (end.exit_code == options_.elsewhere_code) {
        ++shift_;
        end_parked(survivors_);
      }
      ++launch_.restarts;
      launch_.failed_ns = end.failed_ns;
      const std::string kept =
          options_.in_process ? fmt::format("; {} of {} ranks keep their processes", survivors_.size(), options_.nproc)
                              : "";
      print_launcher_message(fmt::format("restart {} of {}: {} (seen {:.1f} s after its last sign of life){}",
                                         launch_.restarts, options_.max_restarts, end.failure->reason,
                                         end.done.detect_seconds, kept));
    }
  }

 private:
  // Restarts only after a failure that may not repeat, and only while restarts are left.
  bool starts_again(const AttemptEnd& end) const {
    if (!end.failure || end.on_request || options_.max_restarts == 0) return false;
    if (options_.is_final(end.exit_code)) {
      print_launcher_message(fmt::format("not started again: exit code {} would only repeat", end.exit_code));
      return false;
    }
    if (end.exit_code == options_.elsewhere_code && options_.nproc == 1) {
      print_launcher_message(
          fmt::format("not started again: exit code {} asks for another device, and a single rank has only one here",
                      end.exit_code));
      return false;
    }
    if (launch_.restarts < options_.max_restarts) return true;
    print_launcher_message(fmt::format("not started again: --max_restarts {} is used up", options_.max_restarts));
    return false;
  }

  const LaunchOptions& options_;
  const RankMain& rank_main_;
  HeartbeatPage page_;
  RankLaunch launch_;
  JobLimits limits_;
  std::vector<RankProcess> survivors_;  // parked ranks of the last attempt
  int shift_ = 0;
};

}  // namespace

void JobLimits::begin_start() {
  if (current_) before_ = current_->learned;
}

void JobLimits::learn_from(const SeenTimes& seen) {
  if (!learning_ || !current_) return;
  const LearnedLimits now = learn(before_, seen, *learning_);
  if (now == current_->learned) return;
  if (now.count() > current_->learned.count())
    print_launcher_message(fmt::format("time limits learned from this run: {}", now.in_words()));
  current_->learned = now;
  if (keeps_) learning_->keep(now);
}

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
  if (nnodes > 1 && master_addr.empty() && node_rank > 0)
    refuse("--nnodes above 1 needs --master_addr: the name or address of machine 0");
  if (max_restarts < 0) refuse(fmt::format("--max_restarts is {}; it must be at least 0", max_restarts));
  if (max_restarts > 0 && nnodes > 1)
    refuse(
        fmt::format("--max_restarts {} with --nnodes {}: on several machines, use torchrun --max-restarts"
                    " (see docs/faults.md)",
                    max_restarts, nnodes));
  if (in_process && max_restarts == 0)
    refuse("inprocess_restart needs --max_restarts: how often ranks may be restarted after a fault");
  if (!problems.empty()) throw ConfigError(problems);
}

std::optional<std::string> nccl_host_of_rank(const std::optional<std::string>& launcher_host, int rank) {
  constexpr std::string_view kRank = "%r";
  const size_t offset = launcher_host ? launcher_host->find(kRank) : std::string::npos;
  if (offset == std::string::npos) return std::nullopt;
  return std::string(*launcher_host).replace(offset, kRank.size(), std::to_string(rank));
}

int launch_ranks(const LaunchOptions& options, const RankMain& rank_main) {
  options.validate();
  return Job(options, rank_main).run();
}

int launch_ranks(const LaunchOptions& options, const std::function<int()>& rank_main) {
  return launch_ranks(options, RankMain([&](const RankLaunch&) { return rank_main(); }));
}

}  // namespace megalith::comm
