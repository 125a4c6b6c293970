#include "megalith/plan/rank_sizes.h"

namespace megalith::plan {

nn::RankSizes rank_sizes(const RunShape& run) {
  const model::ModelOptions& options = run.options;
  return {.t = run.tokens(),
          .s = run.shard_tokens(),
          .h = static_cast<double>(run.model->hidden_size),
          .length = static_cast<double>(run.sequence_length),
          .bytes = run.element_bytes(),
          .dtype = options.dtype,
          .tp = run.grid.tp,
          .cp = run.grid.cp,
          .ep = run.grid.ep,
          .etp = run.grid.expert_tp(),
          .split_tokens = options.sequence_parallel && run.grid.tp > 1,
          .tp_overlap = options.tp_overlap,
          .tp_slices = options.tp_slices,
          .discards_norms = options.recompute.norms,
          .accumulates = run.microbatches > 1,
          .frozen = options.adapter.has_value(),
          .adapter_dropout = options.adapter ? options.adapter->dropout : 0,
          .fp8 = options.fp8,
          .machinery = run.machinery};
}

}  // namespace megalith::plan
