// Translates a DeepSpeed file (deepspeed) into Megalith's terms.
#pragma once

#include <string>
#include <vector>

#include "megalith/config/value.h"

namespace megalith::config {

struct DeepspeedRequest {
  bool shards_optimizer = false;      // ZeRO stage 1 or 2: use_distributed_optimizer
  bool offloads_optimizer = false;    // offload_optimizer to the CPU: optimizer_cpu_offload of all parameters
  std::vector<std::string> problems;  // requests that Megalith cannot fulfill; each a whole message
};

// Reads the parts of the file that change what a run computes or where its state lives. Values that are "auto" follow
// the options, as with Hugging Face. Settings of communication (bucket sizes, overlap) are left out: they have options
// of their own.
DeepspeedRequest read_deepspeed(const JsonObject& file);

}  // namespace megalith::config
