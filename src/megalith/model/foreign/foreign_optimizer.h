// The state of AdamW in checkpoints of other programs: exp_avg, exp_avg_sq, fp32 main parameters and the step.
//
//   Megatron-Core, torch_dist   optimizer.state.exp_avg.NAME, optimizer.state.fp32_param.NAME (or param), with the
//                               names and stacks of the weights; the step is in common.pt. Written by the optimizer
//                               that is not distributed, and by the distributed one with
//                               --dist-ckpt-optim-fully-reshardable
//   torch.distributed           …state.NAME.exp_avg, …state.NAME.step, with the names of the weights (FSDP)
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "megalith/hf/foreign/dcp_folder.h"
#include "megalith/hf/name_map.h"
#include "megalith/model/families/model_config.h"

namespace megalith::model {

// The state as a Megalith checkpoint stores it (docs/checkpoint-format.md), whole tensors in fp32.
struct ForeignOptimizer {
  struct Tensor {
    std::string name;  // optimizer.exp_avg.layers.3.attention.q.weight
    std::vector<int64_t> shape;
    std::function<at::Tensor()> load;  // reads the folder, which it keeps
  };
  std::vector<Tensor> tensors;
  int64_t step = 0;         // updates so far
  std::string left_out_as;  // why the state cannot be used; empty if it can. Then the other members mean nothing
};

// Finds the state of all trained tensors of a model. `with_main`: the weights that are written have 16 bits, so that
// main parameters are wanted as well; they are left out where the checkpoint has none. Never throws for a state that
// is incomplete or in another form: says so in left_out_as.
ForeignOptimizer find_foreign_optimizer(const std::shared_ptr<const hf::DcpFolder>& folder, const ModelConfig& config,
                                        const std::shared_ptr<const hf::TensorMapping>& mapping, bool with_main);

}  // namespace megalith::model
