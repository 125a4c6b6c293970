// Do data-parallel replicas hold the same parameters? They compute them from the same numbers, so a difference means a
// broken device, memory or link (or a bug): nothing else would show it before the loss does.
#pragma once

#include <cstdint>

#include "megalith/model/virtual_models.h"

namespace megalith::train {

// Compares sums over the bits of every parameter among the ranks that hold it, experts' and buffers' too. Collective
// over all ranks; parameters have arrived (finish_param_gather). Throws CommError that names the step, the first
// parameter that differs and the ranks on both sides.
void check_replicas(const model::VirtualModels& models, int64_t step);

}  // namespace megalith::train
