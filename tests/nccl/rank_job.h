// Jobs of the program whose ranks are processes on ONE GPU, connected by NCCL.
//
// NCCL refuses two ranks on one GPU only while they seem to be on one machine. Here each rank is a process with an
// NCCL_HOSTID of its own, so that NCCL takes every rank for another machine and connects them by sockets over
// loopback; and each has LOCAL_RANK 0, as torchrun would start them on as many machines with one GPU each. The
// processes share the GPU by time slices (or, where a CUDA MPS daemon runs, side by side): slow, but the same code as
// on many GPUs.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/subprocess.h"

namespace megalith::testing {

using Words = std::vector<std::string>;

// The transport between ranks, and where their tensors are.
enum class Transport { kNccl, kGlooOnGpu, kGlooOnCpu };

// MEGALITH_NCCL_TESTS: nccl (the default where there is a GPU), gloo_gpu or gloo_cpu, which run the same cases without
// NCCL and without a GPU. Empty when there is no GPU and nothing was asked for.
std::optional<Transport> chosen_transport();
std::string to_string(Transport transport);
// The options that choose it, for `ranks` ranks.
Words transport_words(Transport transport, int ranks);
// Returns the environment of every rank: NCCL over loopback with small buffers, deterministic cuBLAS, one CPU thread.
std::map<std::string, std::string> rank_environment(Transport transport);

// How ranks come into being.
enum class StartedBy {
  kVariables,  // RANK, WORLD_SIZE, …, as torchrun sets them; rank 0 serves the store
  kLaunchers,  // a launcher per rank: --nproc 1 --nnodes N --node_rank R, as on N machines
};

// How a job ended.
struct JobEnd {
  std::vector<ProcessResult> ranks;
  std::optional<int> first_failed;   // the rank that was seen to fail first
  std::optional<double> first_step;  // seconds from the start until step 1 was told
  double seconds = 0;                // from the start
  bool in_time = true;               // no rank had to be killed

  bool well() const { return !first_failed && in_time; }
  int left_behind() const;     // processes that outlived their rank
  std::string errors() const;  // stderr of all ranks
  std::string story() const;   // the end of what every rank said, the first to fail first; for a failed test
};

// The processes of one job, started together; all are killed when it ends.
class RankJob {
 public:
  // `words` begin with the program. `own` has further variables for single ranks.
  RankJob(const Words& words, int ranks, Transport transport, StartedBy starter = StartedBy::kVariables,
          const std::map<int, std::map<std::string, std::string>>& own = {});

  Subprocess& rank(int number) { return *ranks_.at(static_cast<size_t>(number)); }
  // Until rank 0 has told of this step; false when a rank ends, or `limit` passes, before.
  bool wait_for_step(int step, std::chrono::seconds limit);
  // Waits for all ranks. When one has failed the others have `grace` to end by themselves, too.
  JobEnd finish(std::chrono::seconds limit, std::chrono::seconds grace = std::chrono::seconds(20));
  // Read what the ranks say; whether all, or some, of them still run.
  bool look();
  bool any_runs();
  double seconds() const;  // since the start

 private:
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<Subprocess>> ranks_;
  std::optional<int> first_ended_;
  std::optional<double> first_step_;
};

// A whole job that has to end well, within MEGALITH_NCCL_LIMIT seconds (100); throws Error with its story otherwise.
// `variables` are further ones for every rank.
JobEnd run_job(const Words& words, int ranks, Transport transport, StartedBy starter = StartedBy::kVariables,
               const std::map<std::string, std::string>& variables = {});

}  // namespace megalith::testing
