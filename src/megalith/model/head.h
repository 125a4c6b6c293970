// Head: what stands behind the last layer of a model. The library's predicts tokens (language_head.h); a family may
// bring its own (Family::head): values, scores, classes.
//
// Legend: t tokens, h hidden.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "megalith/model/families/model_config.h"
#include "megalith/model/model_input.h"
#include "megalith/model/model_options.h"
#include "megalith/nn/layer_input.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::model {

class TransformerBlock;

// Where a head is made: on the chunk with the last layer. All of it outlives the head.
struct HeadSite {
  const ModelConfig& config;
  const ModelOptions& options;
  parallel::ParallelContext& context;
  nn::TensorParallel tp;  // never with fp8: what a head loses in 8 bits is seen in the loss
};

// One thread per rank; all ranks of the tensor-parallel group call forward together.
class Head {
 public:
  virtual ~Head() = default;

  // x [t, h] (or [t/tp, h] with sequence parallelism), the output of the last layer, before any norm. With
  // input.targets: the loss of each token, fp32 [t], equal on all tp ranks. Without: what the head says about each
  // token, [t, …]; about the last one alone with input.last_token_only. `each`: what the layers of this pass got.
  virtual at::Tensor forward(const at::Tensor& x, const ModelInput& input, const nn::LayerInput& each) const = 0;

  // Whether forward without targets gives this rank's columns of the logits, [t, v/tp]: what generation, scoring and
  // the accuracy of evaluations read.
  virtual bool predicts_tokens() const { return false; }
  // Transformer layers that it has of its own.
  virtual std::vector<const TransformerBlock*> blocks() const { return {}; }
};

}  // namespace megalith::model
