// Properties that all layers of a model share: how they are split, the shape of norms, the initial distribution of
// weights. The shapes of their parts are in attention_kinds.cc and feed_forward_kinds.cc.
#pragma once

#include "megalith/model/families/model_config.h"
#include "megalith/model/model_options.h"
#include "megalith/nn/context_parallel/context_parallel.h"
#include "megalith/nn/norm.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::model {

// Returns the tensor-parallel group and how tokens and products are split over it.
nn::TensorParallel tensor_parallel(const ModelOptions& options, const parallel::ParallelContext& context);
// Whether the products of a block are in fp8, if those of the model are.
bool uses_fp8(const ModelConfig& config, const ModelOptions& options, int64_t layer);
// The same for one block, with fp8 if the block uses it.
nn::TensorParallel tensor_parallel(const ModelConfig& config, const ModelOptions& options,
                                   const parallel::ParallelContext& context, int64_t layer);
// Returns the context-parallel group of a layer and how it exchanges keys and values. Throws ConfigError if the list of
// modes is too short.
nn::ContextParallel context_parallel(const ModelOptions& options, const parallel::ParallelContext& context,
                                     int64_t layer);
// Returns the shape of every norm over the hidden size.
nn::NormShape norm_shape(const ModelConfig& config);
// Returns the Init of projections that write into the residual stream: narrower with depth, as in GPT-2.
nn::Init output_init(const ModelConfig& config);

}  // namespace megalith::model
