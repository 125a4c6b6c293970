#include "tests/nccl/rank_job.h"

#include <ATen/Context.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "tests/nccl/made_once.h"
#include "tests/support/free_port.h"

namespace megalith::testing {

namespace {

using std::chrono::milliseconds;

// Ranks of this job, whatever started the tests.
const std::vector<std::string> kForeignVariables{"MEGALITH_LAUNCHER",
                                                 "TORCHELASTIC_RUN_ID",
                                                 "TORCHELASTIC_USE_AGENT_STORE",
                                                 "TORCHELASTIC_RESTART_COUNT",
                                                 "SLURM_PROCID",
                                                 "SLURM_STEP_ID",
                                                 "SLURM_NTASKS",
                                                 "OMPI_COMM_WORLD_RANK"};

std::string last_lines(const std::string& text, size_t bytes) {
  return text.size() <= bytes ? text : "[…] " + text.substr(text.size() - bytes);
}

bool failed(const ProcessResult& result) { return result.exit_code != 0; }

Words launcher_words(int rank, int ranks, int port) {
  return {"--nproc=1", fmt::format("--nnodes={}", ranks), fmt::format("--node_rank={}", rank),
          "--master_addr=127.0.0.1", fmt::format("--master_port={}", port)};
}

std::map<std::string, std::string> launcher_variables(int rank, int ranks, int port) {
  return {{"RANK", std::to_string(rank)}, {"WORLD_SIZE", std::to_string(ranks)}, {"LOCAL_RANK", "0"},
          {"LOCAL_WORLD_SIZE", "1"},      {"MASTER_ADDR", "127.0.0.1"},          {"MASTER_PORT", std::to_string(port)}};
}

}  // namespace

std::optional<Transport> chosen_transport() {
  const char* wish = std::getenv("MEGALITH_NCCL_TESTS");
  const std::string name = wish == nullptr ? "" : wish;
  const bool gpu = at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0;
  if (name == "gloo_cpu") return Transport::kGlooOnCpu;
  check(name.empty() || name == "nccl" || name == "gloo_gpu",
        "MEGALITH_NCCL_TESTS is \"{}\"; it may be nccl, gloo_gpu or gloo_cpu", name);
  check(name.empty() || gpu, "MEGALITH_NCCL_TESTS is {}, but no GPU is visible; without one use gloo_cpu", name);
  if (!gpu) return std::nullopt;
  return name == "gloo_gpu" ? Transport::kGlooOnGpu : Transport::kNccl;
}

std::string to_string(Transport transport) {
  return transport == Transport::kNccl ? "nccl" : transport == Transport::kGlooOnGpu ? "gloo_gpu" : "gloo_cpu";
}

Words transport_words(Transport transport, int ranks) {
  Words words;
  if (ranks > 1) words.emplace_back(transport == Transport::kNccl ? "--ddp_backend=nccl" : "--ddp_backend=gloo");
  if (transport == Transport::kGlooOnCpu) words.emplace_back("--use_cpu");
  return words;
}

std::map<std::string, std::string> rank_environment(Transport transport) {
  std::map<std::string, std::string> env{{"OMP_NUM_THREADS", "1"},
                                         {"CUBLAS_WORKSPACE_CONFIG", ":4096:8"},
                                         {"NVIDIA_TF32_OVERRIDE", "0"},
                                         {"MEGALITH_SOCKET_IFNAME", "lo"},
                                         {"XDG_CACHE_HOME", (cache_folder() / "prepared").string()}};
  for (const std::string& name : kForeignVariables) env[name] = "";
  if (transport == Transport::kNccl) {
    env.insert({{"NCCL_SOCKET_IFNAME", "lo"},
                {"NCCL_NET", "Socket"},
                {"NCCL_IB_DISABLE", "1"},
                {"NCCL_P2P_DISABLE", "1"},
                {"NCCL_SHM_DISABLE", "1"},
                {"NCCL_NVLS_ENABLE", "0"},
                {"NCCL_MNNVL_ENABLE", "0"},
                {"NCCL_RAS_ENABLE", "0"},
                {"NCCL_CUMEM_HOST_ENABLE", "0"},
                // Small: the communicators of many processes share one GPU.
                {"NCCL_MIN_NCHANNELS", "1"},
                {"NCCL_MAX_NCHANNELS", "2"},
                {"NCCL_BUFFSIZE", "1048576"},
                {"NCCL_SOCKET_NTHREADS", "1"},
                {"NCCL_NSOCKS_PERTHREAD", "1"},
                {"NCCL_DEBUG", "WARN"},
                {"NCCL_DEBUG_FILE", "/dev/stderr"}});  // stdout is the program's data
  }
  return env;
}

int JobEnd::left_behind() const {
  int count = 0;
  for (const ProcessResult& rank : ranks) count += rank.left_behind;
  return count;
}

std::string JobEnd::errors() const {
  std::string text;
  for (const ProcessResult& rank : ranks) text += rank.err;
  return text;
}

std::string JobEnd::story() const {
  constexpr size_t kBytes = 3000;
  std::string text = fmt::format("after {:.1f} s{}\n", seconds, in_time ? "" : ", ended by force");
  const auto tell = [&](size_t rank) {
    text += fmt::format("---- rank {}: exit code {}\n{}{}\n", rank, ranks[rank].exit_code,
                        last_lines(ranks[rank].out, kBytes), last_lines(ranks[rank].err, kBytes));
  };
  if (first_failed) tell(static_cast<size_t>(*first_failed));
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    if (static_cast<int>(rank) != first_failed) tell(rank);
  return text;
}

RankJob::RankJob(const Words& words, int ranks, Transport transport, StartedBy starter,
                 const std::map<int, std::map<std::string, std::string>>& own) {
  const int port = free_port();
  for (int rank = 0; rank < ranks; ++rank) {
    Words command = words;
    std::map<std::string, std::string> env = rank_environment(transport);
    if (transport == Transport::kNccl) env["NCCL_HOSTID"] = fmt::format("megalith-{}-{}", port, rank);
    if (ranks > 1 && starter == StartedBy::kLaunchers) {
      for (std::string& word : launcher_words(rank, ranks, port)) command.push_back(std::move(word));
    } else if (ranks > 1) {
      env.merge(launcher_variables(rank, ranks, port));
    }
    if (const auto more = own.find(rank); more != own.end())
      for (const auto& [name, value] : more->second) env[name] = value;
    ranks_.push_back(std::make_unique<Subprocess>(command, env));
  }
}

double RankJob::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

bool RankJob::look() {
  bool all_run = true;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank]->running()) continue;
    all_run = false;
    if (!first_ended_) first_ended_ = static_cast<int>(rank);
  }
  if (!first_step_ && ranks_[0]->so_far().err.find("step 1/") != std::string::npos) first_step_ = seconds();
  return all_run;
}

bool RankJob::any_runs() {
  look();
  return std::ranges::any_of(ranks_, [](const auto& rank) { return rank->running(); });
}

bool RankJob::wait_for_step(int step, std::chrono::seconds limit) {
  const std::string text = fmt::format("step {}/", step);
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (std::chrono::steady_clock::now() < deadline) {
    const bool all_run = look();
    if (ranks_[0]->so_far().err.find(text) != std::string::npos) return true;
    if (!all_run) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return false;
}

JobEnd RankJob::finish(std::chrono::seconds limit, std::chrono::seconds grace) {
  auto deadline = std::chrono::steady_clock::now() + limit;
  bool one_ended = false;
  while (any_runs() && std::chrono::steady_clock::now() < deadline) {
    // After the first end, good or bad, the others have little left to do.
    if (!look() && !one_ended) {
      one_ended = true;
      deadline = std::min(deadline, std::chrono::steady_clock::now() + grace);
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
  look();
  JobEnd end{.ranks = {}, .first_failed = {}, .first_step = first_step_, .seconds = seconds(), .in_time = true};
  for (const auto& rank : ranks_) end.ranks.push_back(rank->finish(milliseconds(0)));
  for (size_t rank = 0; rank < end.ranks.size(); ++rank) {
    if (end.ranks[rank].timed_out) end.in_time = false;
    if (failed(end.ranks[rank]) && !end.first_failed) end.first_failed = static_cast<int>(rank);
  }
  if (first_ended_ && failed(end.ranks[static_cast<size_t>(*first_ended_)])) end.first_failed = first_ended_;
  return end;
}

JobEnd run_job(const Words& words, int ranks, Transport transport, StartedBy starter,
               const std::map<std::string, std::string>& variables) {
  const std::chrono::seconds limit(env_int("MEGALITH_NCCL_LIMIT").value_or(100));
  std::map<int, std::map<std::string, std::string>> own;
  for (int rank = 0; rank < ranks; ++rank) own[rank] = variables;
  const JobEnd end = RankJob(words, ranks, transport, starter, own).finish(limit);
  check(end.well(), "{} with {} ranks over {}: {}", fmt::join(words, " "), ranks, to_string(transport), end.story());
  return end;
}

}  // namespace megalith::testing
