// A run whose memory means something: wide enough that activations outweigh what libraries allocate for themselves.
#pragma once

#include <filesystem>

#include "tests/nccl/rank_job.h"

namespace megalith::testing {

std::filesystem::path memory_model();
// The options that its plan has, too: two ranks, tensor and sequence parallelism, bf16.
Words memory_layout();
// The whole command of a few steps.
Words memory_command(Transport transport, const std::filesystem::path& output);

}  // namespace megalith::testing
