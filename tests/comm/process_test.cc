// Real processes: what works, and how runs end when a rank, a port, a host or a variable is wrong. Each ends within its
// limit with a message that says what happened, and leaves no process behind.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/cuttable_proxy.h"
#include "tests/support/expect.h"
#include "tests/support/free_port.h"
#include "tests/support/subprocess.h"

namespace megalith::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Env = std::map<std::string, std::string>;

std::vector<std::string> command(std::vector<std::string> words) {
  words.insert(words.begin(), RANK_PROGRAM);
  return words;
}

// The variables that torchrun sets for rank `rank` of `size` on one machine.
Env rank_env(int rank, int size, int port) {
  return {{"RANK", std::to_string(rank)},       {"LOCAL_RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(size)}, {"LOCAL_WORLD_SIZE", std::to_string(size)},
          {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(port)}};
}

void expect_failed_cleanly(const ProcessResult& result, int exit_code, double limit_s) {
  EXPECT_EQ(result.exit_code, exit_code) << result.out << result.err;
  EXPECT_FALSE(result.timed_out);
  EXPECT_LT(result.seconds, limit_s);
  EXPECT_EQ(result.left_behind, 0);
}

TEST(Processes, FourRanksRunTheCollectives) {
  const auto result = run_process(command({"--nproc", "4", "collectives"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.left_behind, 0);
  EXPECT_TRUE(result.out.starts_with("rank 0 of 4") || result.out.find("\nrank 0 of 4") != std::string::npos)
      << result.out;
  for (int rank = 1; rank < 4; ++rank)
    expect_contains(result.out, "[rank " + std::to_string(rank) + "] rank " + std::to_string(rank) + " of 4 is done");
}

TEST(Processes, FourRanksInDebugMode) {
  const auto result = run_process(command({"--nproc", "4", "collectives"}), {{"MEGALITH_COMM_DEBUG", "1"}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(Processes, WhatOneRankHasClaimedNoOtherGets) {
  const auto result = run_process(command({"--nproc", "4", "claims"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_contains(result.out, "held by rank ");
}

TEST(Processes, AWorldCanBeLeftAndJoinedAgain) {
  const auto result = run_process(command({"--nproc", "3", "twice"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(Processes, RanksStartedOneByOneWithTorchrunVariables) {
  const int port = free_port();
  std::vector<std::unique_ptr<Subprocess>> ranks;
  for (int rank = 3; rank >= 0; --rank)  // the one that serves the store comes last
    ranks.push_back(std::make_unique<Subprocess>(command({"collectives"}), rank_env(rank, 4, port)));
  for (auto& rank : ranks) {
    const auto result = rank->finish(seconds(30));
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
}

TEST(Processes, RanksStartedWithSlurmVariables) {
  const std::string port = std::to_string(free_port());
  std::vector<std::unique_ptr<Subprocess>> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.push_back(std::make_unique<Subprocess>(command({"collectives"}), Env{{"SLURM_PROCID", std::to_string(rank)},
                                                                               {"SLURM_LOCALID", std::to_string(rank)},
                                                                               {"SLURM_NTASKS", "2"},
                                                                               {"SLURM_STEP_ID", "0"},
                                                                               {"SLURM_JOB_NODELIST", "localhost"},
                                                                               {"MASTER_PORT", port}}));
  for (auto& rank : ranks) {
    const auto result = rank->finish(seconds(30));
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
}

TEST(Processes, TwoMachines) {
  const std::string port = std::to_string(free_port());
  const auto machine = [&](const char* node_rank) {
    return command({"--nproc", "2", "--nnodes", "2", "--node_rank", node_rank, "--master_addr", "127.0.0.1",
                    "--master_port", port, "collectives"});
  };
  Subprocess second(machine("1")), first(machine("0"));
  const auto results = {first.finish(seconds(30)), second.finish(seconds(30))};
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.left_behind, 0);
  }
}

TEST(Processes, TwoMachinesOverIpv6) {
  const int fd = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 own{};
  own.sin6_family = AF_INET6;
  own.sin6_addr = in6addr_loopback;
  const bool has_ipv6 = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&own), sizeof own) == 0;
  close(fd);
  if (!has_ipv6) GTEST_SKIP() << "no IPv6";
  const std::string port = std::to_string(free_port());
  const auto machine = [&](const char* node_rank) {
    return command({"--nproc", "1", "--nnodes", "2", "--node_rank", node_rank, "--master_addr", "::1", "--master_port",
                    port, "collectives"});
  };
  Subprocess second(machine("1")), first(machine("0"));
  for (auto* run : {&first, &second}) {
    const auto result = run->finish(seconds(30));
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
}

// The management network of machine 1 fails for some seconds: launcher, ranks and their watchdogs get over it.
TEST(Processes, AnOutageOfTheStoresNetworkEndsNothing) {
  const int port = free_port();
  CuttableProxy network(port);
  const auto machine = [&](const char* node_rank, int at) {
    return command({"--nproc", "2", "--nnodes", "2", "--node_rank", node_rank, "--master_addr", "127.0.0.1",
                    "--master_port", std::to_string(at), "pauses"});
  };
  Subprocess first(machine("0", port)), second(machine("1", network.port()));
  ASSERT_TRUE(second.wait_for_text("[rank 3] ready", seconds(20)));
  network.set_outage(true);
  std::this_thread::sleep_for(seconds(4));
  network.set_outage(false);
  for (auto* run : {&first, &second}) {
    const auto result = run->finish(seconds(40));
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_EQ(result.left_behind, 0);
  }
}

TEST(Processes, RanksMayOpenAsManyFilesAsTheSystemAllows) {
  const auto result = run_process({"/bin/sh", "-c", "ulimit -Sn 256 && exec " RANK_PROGRAM " --nproc 2 file_limit"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out.find("may open 256 files"), std::string::npos) << result.out;
  expect_contains(result.out, "may open ");
}

TEST(Processes, OutputGoesToFilesWhenAsked) {
  const auto dir = std::filesystem::temp_directory_path() / ("megalith-log-" + std::to_string(getpid()));
  const auto result = run_process(command({"--nproc", "2", "--log_dir", dir.string(), "says_a_lot"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "");
  std::ifstream file(dir / "rank-1.log");
  int lines = 0;
  for (std::string line; std::getline(file, line);) ++lines;
  EXPECT_EQ(lines, 2001);
  std::filesystem::remove_all(dir);
}

TEST(Processes, NoLineOfOutputIsLostOrTorn) {
  const auto result = run_process(command({"--nproc", "4", "says_a_lot"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(std::ranges::count(result.out, '\n'), 4 * 2001);
  for (int rank = 1; rank < 4; ++rank)
    expect_contains(result.out,
                    "\n[rank " + std::to_string(rank) + "] line 1999 of rank " + std::to_string(rank) + "\n");
}

// Several ranks on one GPU, which NCCL refuses: collectives of CUDA tensors over Gloo, transfers through the host.
TEST(Processes, CudaTensorsOverGloo) {
  const auto result = run_process(command({"--nproc", "2", "cuda_collectives"}), {}, seconds(110));
  if (result.exit_code != 0 && result.err.find("no GPU is visible") != std::string::npos) GTEST_SKIP() << "no GPU";
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(ProcessFault, ARankThatNeverEnters) {
  const auto result = run_process(command({"--nproc", "4", "never_enters"}), {{"TIMEOUT_MS", "2500"}});
  expect_failed_cleanly(result, 1, 20);
  expect_contains(result.err, "all_reduce 'grad_norm' #2, float [4], sum of group world");
  expect_contains(result.err, "not arrived: 2");
  expect_contains(result.err, "rank 2: finished barrier 'warm-up' #1 of world");
  expect_contains(result.err, "it was the first to fail");
}

TEST(ProcessFault, ARankKilledIsTheFirstCause) {
  const auto result = run_process(command({"--nproc", "4", "killed"}));
  expect_failed_cleanly(result, 1, 15);
  expect_contains(result.err, "megalith: rank 2 was killed by signal 9 (SIGKILL)");
  expect_contains(result.err, "it was the first to fail");
}

TEST(ProcessFault, ARankKilledWhileTheOthersCompute) {
  const auto result = run_process(command({"--nproc", "4", "killed_while_others_compute"}));
  expect_failed_cleanly(result, 1, 15);
  expect_contains(result.err, "megalith: rank 2 was killed by signal 9 (SIGKILL)");
}

TEST(ProcessFault, ARankThatThrowsIsTheFirstCauseNotTheCascade) {
  const auto result = run_process(command({"--nproc", "4", "throws"}), {{"CULPRIT", "3"}});
  expect_failed_cleanly(result, 2, 15);
  expect_contains(result.err, "[rank 3] train.jsonl, line 7: not JSON");
  expect_contains(result.err, "megalith: rank 3 ended with exit code 2");
  EXPECT_EQ(result.err.find("Connection closed"), std::string::npos) << result.err;
}

TEST(ProcessFault, AKilledRankOnOneMachineEndsTheOther) {
  const std::string port = std::to_string(free_port());
  const auto machine = [&](const char* node_rank) {
    return command({"--nproc", "2", "--nnodes", "2", "--node_rank", node_rank, "--master_addr", "localhost",
                    "--master_port", port, "killed_while_others_compute"});
  };
  Subprocess second(machine("1"), {{"CULPRIT", "1"}}), first(machine("0"), {{"CULPRIT", "1"}});
  const auto zero = first.finish(seconds(30)), one = second.finish(seconds(30));
  expect_failed_cleanly(zero, 1, 25);
  expect_failed_cleanly(one, 1, 25);
  expect_contains(zero.err, "rank 1 was killed by signal 9");
  expect_contains(one.err, "another machine failed first: rank 1 on machine 0 was killed by signal 9");
}

TEST(ProcessFault, DebugModeStopsAMismatchBeforeItHangs) {
  const auto result = run_process(command({"--nproc", "3", "mismatch"}), {{"MEGALITH_COMM_DEBUG", "1"}});
  expect_failed_cleanly(result, 1, 15);
  expect_contains(result.err, "float [4]");
  expect_contains(result.err, "float [5]");
}

TEST(ProcessFault, SignalsReachTheRanks) {
  Subprocess run(command({"--nproc", "3", "runs_until_ended"}));
  ASSERT_TRUE(run.wait_for_text("[rank 2] ready", seconds(20)));
  run.signal(SIGTERM);
  const auto result = run.finish(seconds(20));
  expect_failed_cleanly(result, 128 + SIGTERM, 15);
  expect_contains(result.err, "ended by signal 15 (SIGTERM)");
}

TEST(ProcessFault, ARankThatIgnoresTheSignalIsKilled) {
  Subprocess run(command({"--nproc", "2", "--grace_ms", "500", "ignores_sigterm"}));
  ASSERT_TRUE(run.wait_for_text("[rank 1] ready", seconds(20)));
  run.signal(SIGTERM);
  expect_failed_cleanly(run.finish(seconds(20)), 128 + SIGTERM, 15);
}

TEST(ProcessFault, NothingOutlivesALauncherThatIsKilled) {
  Subprocess run(command({"--nproc", "3", "runs_until_ended"}));
  ASSERT_TRUE(run.wait_for_text("[rank 1] ready", seconds(20)));
  run.signal(SIGKILL);
  const auto result = run.finish(seconds(20));
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_EQ(result.left_behind, 0);
}

// Something else listens on the port.
class TakenPort {
 public:
  TakenPort() : port_(free_port()), fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port_));
    bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    listen(fd_, 1);
  }
  ~TakenPort() { close(fd_); }
  std::string port() const { return std::to_string(port_); }

 private:
  int port_, fd_;
};

TEST(ProcessFault, APortAlreadyTakenForTheLauncher) {
  const TakenPort taken;
  const auto result = run_process(command({"--nproc", "2", "--master_port", taken.port(), "collectives"}));
  expect_failed_cleanly(result, 1, 5);
  expect_contains(result.err, "cannot listen on port " + taken.port() + " of 127.0.0.1 (interface lo)");
  expect_contains(result.err, "--master_port");
}

TEST(ProcessFault, APortAlreadyTakenForRankZero) {
  const TakenPort taken;
  Env env = rank_env(0, 2, 0);
  env["MASTER_PORT"] = taken.port();
  const auto result = run_process(command({"collectives"}), env);
  expect_failed_cleanly(result, 1, 10);
  expect_contains(result.err, "cannot listen on port " + taken.port());
  expect_contains(result.err, "MASTER_PORT");
}

TEST(ProcessFault, AMasterAddressWhereNobodyListens) {
  Env env = rank_env(1, 2, free_port());
  env["CONNECT_TIMEOUT_MS"] = "1500";
  const auto result = run_process(command({"collectives"}), env);
  expect_failed_cleanly(result, 1, 10);
  expect_contains(result.err, "no answer from the store at 127.0.0.1:" + env["MASTER_PORT"] + " within 1.5 s");
  expect_contains(result.err, "127.0.0.1 (interface lo)");
  expect_contains(result.err, "Connection refused");
}

TEST(ProcessFault, AMasterAddressThatDoesNotResolve) {
  Env env = rank_env(1, 2, free_port());
  env["MASTER_ADDR"] = "no-such-host.invalid";
  env["CONNECT_TIMEOUT_MS"] = "1500";
  const auto result = run_process(command({"collectives"}), env, seconds(60));
  expect_failed_cleanly(result, 1, 45);
  expect_contains(result.err, "\"no-such-host.invalid\" (MASTER_ADDR) cannot be resolved");
}

TEST(ProcessFault, ARankBeyondTheWorldSize) {
  const auto result = run_process(command({"collectives"}), rank_env(4, 4, 29500));
  expect_failed_cleanly(result, 2, 5);
  expect_contains(result.err, "RANK is 4 but WORLD_SIZE is 4: ranks go from 0 to 3");
}

TEST(ProcessFault, UnsetVariablesAreAllNamed) {
  const auto result = run_process(command({"collectives"}), {{"RANK", "1"}});
  expect_failed_cleanly(result, 2, 5);
  for (const char* name : {"WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"})
    expect_contains(result.err, std::string(name) + " is not set");
}

TEST(ProcessFault, AVariableThatIsNotANumber) {
  Env env = rank_env(0, 4, 29500);
  env["WORLD_SIZE"] = "four";
  const auto result = run_process(command({"collectives"}), env);
  expect_failed_cleanly(result, 2, 5);
  expect_contains(result.err, "WORLD_SIZE is \"four\"");
}

}  // namespace
}  // namespace megalith::testing
