#include "megalith/plan/rank_sizes.h"

namespace megalith::plan {

// Images are dealt to the ranks that share a micro-batch; the busiest one has a whole number of them.
nn::RankSizes rank_sizes(const RunShape& run) {
  const model::ModelOptions& options = run.options;
  const int64_t ranks = run.grid.tp * run.grid.cp;
  const auto patches = static_cast<double>((run.microbatch_images() + ranks - 1) / ranks * run.image_patches());
  const double merged = run.model->vision ? static_cast<double>(run.model->vision->merged()) : 1;
  return {.t = run.tokens(),
          .s = run.shard_tokens(),
          .h = static_cast<double>(run.model->hidden_size),
          .length = static_cast<double>(run.sequence_length),
          .bytes = run.element_bytes(),
          .dtype = options.dtype,
          .wide_stream = options.wide_stream(),
          .tp = run.grid.tp,
          .cp = run.grid.cp,
          .ep = run.grid.ep,
          .etp = run.grid.expert_tp(),
          .split_tokens = options.sequence_parallel && run.grid.tp > 1,
          .tp_overlap = options.tp_overlap,
          .tp_slices = options.tp_slices,
          .discards_norms = options.recompute.norms,
          .accumulates = run.microbatches > 1,
          .frozen = options.adapter.has_value() || options.freeze.language_model,
          .adapter_dropout = options.adapter ? options.adapter->dropout : 0,
          .patches = patches,
          .frame_patches = static_cast<double>(run.image_patches()),
          .image_rows = patches / merged * static_cast<double>(ranks),
          .fp8 = options.fp8,
          .machinery = run.machinery};
}

}  // namespace megalith::plan
