#include "bench/ranks_on_gpu.h"

#include <map>
#include <memory>

#include "tests/support/free_port.h"

namespace megalith::bench {

using testing::ProcessResult;
using testing::Subprocess;

ProcessResult run_ranks_on_gpu(std::vector<std::string> command, int ranks, std::chrono::milliseconds limit) {
  if (ranks == 1) return testing::run_process(command, {}, limit);
  command.emplace_back("--ddp_backend=nccl");
  const std::string port = std::to_string(testing::free_port());
  std::vector<std::unique_ptr<Subprocess>> processes;
  for (int rank = 0; rank < ranks; ++rank)
    processes.push_back(std::make_unique<Subprocess>(
        command, std::map<std::string, std::string>{{"RANK", std::to_string(rank)},
                                                    {"WORLD_SIZE", std::to_string(ranks)},
                                                    {"LOCAL_RANK", "0"},
                                                    {"LOCAL_WORLD_SIZE", "1"},
                                                    {"MASTER_ADDR", "127.0.0.1"},
                                                    {"MASTER_PORT", port},
                                                    {"MEGALITH_SOCKET_IFNAME", "lo"},
                                                    {"NCCL_SOCKET_IFNAME", "lo"},
                                                    {"NCCL_NET", "Socket"},
                                                    {"NCCL_P2P_DISABLE", "1"},
                                                    {"NCCL_SHM_DISABLE", "1"},
                                                    {"NCCL_NVLS_ENABLE", "0"},
                                                    {"NCCL_HOSTID", port + "-" + std::to_string(rank)}}));
  std::vector<ProcessResult> ends;
  for (const auto& process : processes) ends.push_back(process->finish(limit));
  for (const ProcessResult& end : ends)
    if (end.exit_code != 0) return end;
  return ends.front();
}

}  // namespace megalith::bench
