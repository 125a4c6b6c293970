#include "megalith/plan/rank_sizes.h"

namespace megalith::plan {

namespace {

// Media are dealt to the ranks that share a micro-batch. Returns those of the busiest one, which has a whole number.
int64_t busiest(const RunShape& run, int64_t media) {
  const int64_t ranks = int64_t{run.grid.tp} * run.grid.cp;
  return (media + ranks - 1) / ranks;
}

// Rows of ranks are padded to those of the busiest one when they are gathered.
double gathered(const RunShape& run, double rows) { return rows * run.grid.tp * run.grid.cp; }

nn::ImageSizes image_sizes(const RunShape& run) {
  if (!run.model->vision) return {};
  const auto patches = static_cast<double>(busiest(run, run.microbatch_images()) * run.image_patches());
  const double rows = patches / static_cast<double>(run.model->vision->merged());
  return {.patches = patches,
          .frame_patches = static_cast<double>(run.image_patches()),
          .gathered_rows = gathered(run, rows)};
}

nn::SoundSizes sound_sizes(const RunShape& run) {
  if (!run.model->audio) return {};
  const nn::AudioShape& tower = *run.model->audio;
  const int64_t sounds = busiest(run, run.microbatch_sounds());
  const auto rows = static_cast<double>(tower.rows(run.sound_frames));
  const int64_t chunks = (run.sound_frames + tower.chunk - 1) / tower.chunk;
  return {.frames = static_cast<double>(sounds * run.sound_frames),
          .chunks = static_cast<double>(sounds * chunks),
          .rows = static_cast<double>(sounds) * rows,
          .rows_of_one = rows,
          .gathered_rows = gathered(run, static_cast<double>(sounds) * rows)};
}

}  // namespace

nn::RankSizes rank_sizes(const RunShape& run) {
  const model::ModelOptions& options = run.options;
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
          .images = image_sizes(run),
          .sounds = sound_sizes(run),
          .fp8 = options.fp8,
          .quantization = options.quantization,
          .machinery = run.machinery};
}

}  // namespace megalith::plan
