// One multi-token-prediction layer: two norms, a projection from 2h to h, a block and a norm. See mtp_layer.h for the
// picture. The block's index in a KvCache is num_layers + depth, which no layer of the model uses.
#include "megalith/model/mtp_layer.h"

#include <ATen/ATen.h>

#include "megalith/model/block_shapes_internal.h"

namespace megalith::model {

namespace {

nn::Norm make_norm(const nn::ParameterScope& scope, const ModelConfig& config, const nn::TensorParallel& tp) {
  return nn::Norm(scope, norm_shape(config), tp.splits_tokens(), tp.rank());
}

}  // namespace

MtpLayer::MtpLayer(const nn::ParameterScope& scope, const ModelConfig& config, const ModelOptions& options,
                   int64_t depth, parallel::ParallelContext& context)
    : embedding_norm_(make_norm(scope.child("embedding_norm"), config, tensor_parallel(options, context))),
      hidden_norm_(make_norm(scope.child("hidden_norm"), config, tensor_parallel(options, context))),
      stream_dtype_(options.stream_dtype()),
      projection_(scope, "projection", 2 * config.hidden_size, {{"projection", config.hidden_size}}, false,
                  nn::Init::normal(config.init_std), tensor_parallel(options, context)),
      block_(scope.child("layer"), config, options, config.num_layers - 1, config.num_layers + depth, context),
      norm_(make_norm(scope.child("norm"), config, tensor_parallel(options, context))) {}

at::Tensor MtpLayer::forward(const at::Tensor& embedded, const at::Tensor& hidden, const nn::LayerInput& input) const {
  // [t, 2h]: the embedding comes first, as the columns of eh_proj in DeepSeek's files do.
  const at::Tensor both = at::cat({embedding_norm_.forward(embedded), hidden_norm_.forward(hidden)}, 1);
  return norm_.forward(block_.forward(projection_.forward(both).to(stream_dtype_), input));
}

}  // namespace megalith::model
