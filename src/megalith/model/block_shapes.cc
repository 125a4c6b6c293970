// Shapes and groups that every layer derives in the same way from configuration, options and context.
#include <cmath>

#include "megalith/base/error.h"
#include "megalith/model/block_shapes_internal.h"

namespace megalith::model {

nn::TensorParallel tensor_parallel(const ModelOptions& options, const parallel::ParallelContext& context) {
  return {context.tp(), options.sequence_parallel, options.fp8, options.tp_overlap, options.tp_slices};
}

// The first and the last block are the most sensitive to rounding: their errors reach the logits almost directly.
bool uses_fp8(const ModelConfig& config, const ModelOptions& options, int64_t layer) {
  return !options.fp8_inside_only || (layer > 0 && layer < config.num_layers - 1);
}

nn::TensorParallel tensor_parallel(const ModelConfig& config, const ModelOptions& options,
                                   const parallel::ParallelContext& context, int64_t layer) {
  nn::TensorParallel tp = tensor_parallel(options, context);
  if (!uses_fp8(config, options, layer)) tp.fp8.reset();
  return tp;
}

// cp_comm_type gives one mode for all layers, or a list with one per layer.
nn::ContextParallel context_parallel(const ModelOptions& options, const parallel::ParallelContext& context,
                                     int64_t layer) {
  const auto& modes = options.context_modes;
  const auto index = static_cast<size_t>(layer);
  check<ConfigError>(modes.size() <= 1 || index < modes.size(),
                     "cp_comm_type lists {} values, which leaves none for layer {}; give one value for all layers, or "
                     "one per layer",
                     modes.size(), layer);
  const nn::ContextMode mode = modes.empty() ? nn::ContextMode::kRing : modes.size() == 1 ? modes[0] : modes[index];
  return nn::context_parallel(context, mode);
}

nn::NormShape norm_shape(const ModelConfig& config) {
  return {config.norm, config.hidden_size, config.norm_epsilon, config.zero_centered_norms};
}

nn::Init output_init(const ModelConfig& config) {
  // Two such projections per layer add to the stream; this keeps its variance independent of depth.
  return nn::Init::normal(config.init_std / std::sqrt(2.0 * static_cast<double>(config.num_layers)));
}

}  // namespace megalith::model
