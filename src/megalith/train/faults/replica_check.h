// Checks that data-parallel replicas hold the same parameters. They compute them from the same numbers, so a difference
// means a broken device, memory or link (or a bug), which nothing else would show before the loss does.
#pragma once

#include <cstdint>

#include "megalith/model/virtual_models.h"

namespace megalith::train {

// Compares checksums over the bits of every parameter, experts and buffers included, among the ranks that hold it.
// Collective over all ranks; parameters must have arrived (finish_param_gather). Throws CommError naming the step, the
// first parameter that differs and the ranks on both sides.
void check_replicas(const model::VirtualModels& models, int64_t step);

}  // namespace megalith::train
