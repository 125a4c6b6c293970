// How the flat buffers of a chunk are cut: shared by the buffers themselves and by those who plan their size.
#pragma once

#include <cstdint>

#include "megalith/optim/buffer_layout.h"
#include "megalith/optim/distributed_data_parallel.h"

namespace megalith::optim {

// Of a buffer of so many elements: `replicas` of the data, `shards` of the optimizer's state.
BufferRules buffer_rules(const DdpSettings& settings, int64_t elements, int replicas, int shards);

}  // namespace megalith::optim
