// From a ModelConfig to the shapes of its layers; those of what mixes tokens are in block_parts.cc.
#pragma once

#include "megalith/model/families/model_config.h"
#include "megalith/model/model_options.h"
#include "megalith/nn/context_parallel/context_parallel.h"
#include "megalith/nn/mlp.h"
#include "megalith/nn/moe/moe_shape.h"
#include "megalith/nn/norm.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::model {

nn::TensorParallel tensor_parallel(const ModelOptions& options, const parallel::ParallelContext& context);
// Of a block: with fp8 where it has it.
nn::TensorParallel tensor_parallel(const ModelConfig& config, const ModelOptions& options,
                                   const parallel::ParallelContext& context, int64_t layer);
nn::ContextParallel context_parallel(const ModelOptions& options, const parallel::ParallelContext& context,
                                     int64_t layer);
nn::NormShape norm_shape(const ModelConfig& config);
nn::MlpShape mlp_shape(const ModelConfig& config, const ModelOptions& options);
nn::MoeShape moe_shape(const ModelConfig& config);  // needs config.moe
// Of the projections that write into the residual stream: smaller with depth, as in GPT-2.
nn::Init output_init(const ModelConfig& config);

}  // namespace megalith::model
