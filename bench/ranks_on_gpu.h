// Runs the program as several ranks that share one GPU over NCCL.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "tests/support/subprocess.h"

namespace megalith::bench {

// Starts `command` once per rank, each process with an NCCL_HOSTID of its own (NCCL refuses two ranks of one machine on
// one GPU), and waits for all. Returns the end of the first rank that failed, or of rank 0. With one rank it only runs
// the command.
testing::ProcessResult run_ranks_on_gpu(std::vector<std::string> command, int ranks, std::chrono::milliseconds limit);

}  // namespace megalith::bench
