// How the flat buffers of a chunk are cut: shared by the buffers themselves and by those who plan their size.
#pragma once

#include <cstdint>

#include "megalith/optim/buffer_layout.h"
#include "megalith/optim/distributed_data_parallel.h"

namespace megalith::optim {

struct BufferPlace {
  int64_t elements = 0;  // of its parameters
  int replicas = 1;      // of the data
  int shards = 1;        // of the optimizer's state
  bool cuda = false;
};
BufferRules buffer_rules(const DdpSettings& settings, const BufferPlace& place);

}  // namespace megalith::optim
