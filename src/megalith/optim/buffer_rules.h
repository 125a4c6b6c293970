// How the flat buffers of a chunk are cut: shared by the buffers themselves and by the memory planner.
#pragma once

#include <cstdint>

#include "megalith/optim/buffer_layout.h"
#include "megalith/optim/distributed_data_parallel.h"

namespace megalith::optim {

// The facts about one buffer that its bucket size depends on. Plain numbers, so that the planner can fill them in for a
// run that does not exist.
struct BufferPlace {
  int64_t elements = 0;  // total elements of its parameters
  int replicas = 1;      // data-parallel replicas
  int shards = 1;        // ranks that share the optimizer state
  bool cuda = false;     // the buffer is on a GPU
};
// Resolves the bucket size of `settings` for one buffer.
BufferRules buffer_rules(const DdpSettings& settings, const BufferPlace& place);

}  // namespace megalith::optim
