// Adam over state that is kept in the formats of stored_values.h, in one pass over memory: every element is read in its
// own format, updated in fp32 and rounded again within one thread. optim/stored_update.h has the general way, which
// widens pieces of the state for any rule and any device.
#pragma once

#include <span>

#include "megalith/ops/update/adam.h"
#include "megalith/ops/update/stored_values.h"

namespace megalith::ops {

// UpdateTensors of adam.h, as they are stored.
struct StoredAdamTensors {
  StoredValues main;
  at::Tensor grad;  // fp32, bf16 or fp16
  StoredValues exp_avg, exp_avg_sq;
  at::Tensor param{};  // rounded from main as it is stored; undefined if the model reads main, or main.high
  at::Tensor gate{};
  int multiprocessors = 0;  // UpdateTensors::multiprocessors
};

// Does the work of adam_update_runs. Returns false, with nothing changed, where there is no kernel for it: on devices
// other than CUDA, and for arrays that start or end elsewhere than at a multiple of 64 elements.
bool adam_update_stored(const StoredAdamTensors& tensors, const AdamSettings& settings,
                        std::span<const UpdateRun> runs);

}  // namespace megalith::ops
