// The state that this rank's part of the optimizer holds, cut into blocks that are updated in one go.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "megalith/optim/distributed_data_parallel.h"
#include "megalith/optim/optimizer_settings.h"

namespace megalith::optim {

// A piece of one parameter in a block.
struct StatePiece {
  const nn::Parameter* parameter = nullptr;
  int64_t begin = 0, end = 0;  // elements of the block
  int64_t offset = 0;          // of the first among the elements of the parameter
  bool counted = true;         // in norms: not a copy of what another rank counts
};

// Neighbours of one parameter group, with the padding between them, which stays zero under every update.
struct StateRun {
  int64_t begin = 0, end = 0;  // elements of the block
  size_t group = 0;
};

// Elements of one bucket that this rank owns. All tensors are [n].
struct StateBlock {
  at::Tensor grads, params;        // views of the buffers
  at::Tensor main;                 // fp32; a view of params where those are fp32 and the block is not on the host
  std::vector<at::Tensor> states;  // fp32; those of the update rule, in its order
  bool on_host = false;            // offloaded: main and states are in (pinned) host memory
  int copies = 1;                  // ranks that hold the same state, and which of them this is
  int copy = 0;
  std::vector<StatePiece> pieces;
  std::vector<StateRun> runs;
  const ParamBuffer* buffer = nullptr;  // that it is part of
  int bucket = 0;                       // there
  bool whole_bucket = false;            // it is all of that bucket, and every piece is counted
  // main is memory of its own and params a copy of it in the model's dtype.
  bool own_main = false;
};

// Allocates zeros for the states and copies the parameters into main.
//
// Offload: blocks go to the host in the order of the buffers until a fraction of the elements is there.
std::vector<StateBlock> make_state(const std::vector<DistributedDataParallel*>& chunks,
                                   const OptimizerSettings& settings);

}  // namespace megalith::optim
