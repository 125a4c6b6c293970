// The optimizer state of one rank, cut into blocks that are each updated in one call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "megalith/ops/update/stored_values.h"
#include "megalith/optim/distributed_data_parallel.h"
#include "megalith/optim/optimizer_settings.h"
#include "megalith/optim/overlap/overlapped_update.h"

namespace megalith::optim {

// The part of one parameter that lies in a block. Blocks are cut by bucket and shard, not by parameter, so a parameter
// may be in several blocks, in part.
struct StatePiece {
  const nn::Parameter* parameter = nullptr;
  int64_t begin = 0, end = 0;  // elements of the block
  int64_t offset = 0;          // index of its first element within the parameter
  bool counted = true;         // counts in norms; false for a copy that another rank counts
};

// Adjacent pieces of one parameter group, with the padding between them, which stays zero under every update.
struct StateRun {
  int64_t begin = 0, end = 0;  // elements of the block
  size_t group = 0;
};

// Elements of one bucket that this rank owns, all on the device or all on the host. All tensors are [n].
struct StateBlock {
  at::Tensor grads, params;  // views of the buffers
  // The main parameters: a view of params where those are fp32 and the block is not on the host. Where only remainders
  // are kept, main.high is params.
  ops::StoredValues main;
  std::vector<ops::StoredValues> states;  // the update rule's states, in the order of state_names()
  bool on_host = false;                   // offloaded: main and states are in (pinned) host memory
  int copies = 1;                         // number of ranks that hold the same state
  int copy = 0;                           // this rank's number among them
  std::vector<StatePiece> pieces;
  std::vector<StateRun> runs;
  const ParamBuffer* buffer = nullptr;  // the buffer that it is part of
  int bucket = 0;                       // its bucket in that buffer
  bool matrices = false;                // all of its parameters are matrices that Muon updates
  bool whole_bucket = false;            // it covers all of that bucket, and every piece is counted
  // main has its own memory, and params is a copy of it in the model's dtype, or in fp8.
  bool own_main = false;

  // params are bytes in fp8, written by cast_fp8_params (fp8_params.h) alone.
  bool in_fp8() const { return params.scalar_type() == at::kFloat8_e4m3fn; }
};

// Copies the parameters of a block into its main parameters, or back. Both are done in pieces, without an fp32 copy of
// the block. Only for blocks with own_main. In fp8, main comes from weights that were loaded, and params stay as they
// are.
void main_from_params(const StateBlock& block);
void params_from_main(const StateBlock& block);

// Returns what an update that overlaps with a forward pass has to know of blocks.
std::vector<UpdateBlock> update_blocks(const std::vector<StateBlock>& blocks);

// Builds the state of this rank: allocates zeros for the states and copies the parameters into main.
//
// With offload_fraction, blocks are placed on the host in buffer order until that share of the elements is there.
std::vector<StateBlock> make_state(const std::vector<DistributedDataParallel*>& chunks,
                                   const OptimizerSettings& settings);

}  // namespace megalith::optim
