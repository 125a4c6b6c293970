// Head: what follows the last layer of a model. The library's head predicts tokens (language_head.h); a family may
// define its own (Family::head): values, scores, classes.
//
// Legend: t tokens, h hidden.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "megalith/model/families/model_config.h"
#include "megalith/model/model_input.h"
#include "megalith/model/model_options.h"
#include "megalith/nn/layer_input.h"
#include "megalith/nn/parameter/parameter.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::model {

class TransformerBlock;

// The surroundings of a head, on the chunk with the last layer. What it refers to outlives the head.
struct HeadSite {
  const ModelConfig& config;
  const ModelOptions& options;
  parallel::ParallelContext& context;
  nn::TensorParallel tp;  // never with fp8, because rounding errors of the head go straight into the loss
};

// One thread per rank; all ranks of the tensor-parallel group call forward together.
class Head {
 public:
  virtual ~Head() = default;

  // Takes x [t, h] (or [t/tp, h] with sequence parallelism), the output of the last layer, before any norm, in
  // ModelOptions::stream_dtype(). With input.targets, returns the loss of each token, fp32 [t], equal on all tp ranks.
  // Otherwise returns the head's output per token, [t, …], or that of the last token only with input.last_token_only.
  // `layer_input` is what the layers received.
  virtual at::Tensor forward(const at::Tensor& x, const ModelInput& input, const nn::LayerInput& layer_input) const = 0;

  // Whether forward without targets returns this rank's columns of the logits, [t, v/tp], which generation, scoring and
  // the accuracy of evaluations need.
  virtual bool predicts_tokens() const { return false; }
  // Whether forward with targets calls ModelInput::head_loss in place of its own loss.
  virtual bool takes_loss() const { return false; }
  // Returns the weight of the projection to the vocabulary, nullptr if there is none. A pipeline may defer its
  // gradient.
  virtual nn::Parameter* projection() const { return nullptr; }
  // Returns the transformer layers that belong to the head.
  virtual std::vector<const TransformerBlock*> blocks() const { return {}; }
};

// Makes the head of models that score sequences (families/scores.h) in place of one that predicts tokens: final norm
// and a linear layer whose outputs are the scores of the sequence that ends with a token. Its parameters in `root` are
// final_norm and score.weight. forward returns fp32 [t, labels], equal on all tp ranks, and throws ConfigError for
// targets.
std::unique_ptr<Head> make_score_head(const nn::ParameterScope& root, const HeadSite& site);

}  // namespace megalith::model
