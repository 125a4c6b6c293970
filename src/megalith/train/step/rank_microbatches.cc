// Two tokens further on, and then the slices of two context-parallel ranks, by example: the sequence a … h.
//
//   ids                  a b c d e f g h        rank 0: a b g h     rank 1: c d e f
//   further[0].ids       b c d e f g h 0                b c h 0             d e f g
//   further[1].ids       c d e f g h 0 0                c d 0 0             e f g h
//
// Megatron-LM instead exchanges border tokens between ranks at every depth; here all ranks of a replica have the whole
// micro-batch, so that nothing has to travel.
#include "megalith/train/step/rank_microbatches.h"

#include <ATen/ATen.h>

#include "megalith/model/model_input.h"
#include "megalith/nn/context_parallel/slice.h"

namespace megalith::train {

namespace {

void add_further_tokens(data::MicroBatch& batch, int64_t layers) {
  for (model::TokensAhead& ahead : model::tokens_ahead(batch.ids, batch.labels, batch.layout, layers)) {
    const int64_t count = ahead.targets.ge(0).sum().item<int64_t>();  // on the host, like all of a micro-batch
    batch.further.push_back({std::move(ahead.ids), std::move(ahead.targets), count});
  }
}

void cut_slice(data::MicroBatch& batch, int rank, int size) {
  const auto cut = [&](at::Tensor& tokens) {
    if (tokens.defined()) tokens = nn::slice_tokens(tokens, batch.layout, rank, size);
  };
  cut(batch.ids);
  cut(batch.labels);
  cut(batch.visual_rows);
  cut(batch.audio_rows);
  for (data::FurtherTokens& further : batch.further) {
    cut(further.ids);
    cut(further.labels);
  }
  for (auto& [name, extra] : batch.extras)
    if (extra.of == data::ExtraOf::kTokens) cut(extra.values);
  batch.layout = nn::slice_layout(batch.layout, rank, size);
}

}  // namespace

std::vector<data::MicroBatch> rank_microbatches(std::span<const data::MicroBatch> whole, const RankSlice& of) {
  std::vector<data::MicroBatch> batches(whole.begin(), whole.end());
  for (data::MicroBatch& batch : batches) {
    if (of.mtp_layers > 0) add_further_tokens(batch, of.mtp_layers);
    if (of.cp > 1) cut_slice(batch, of.cp_rank, of.cp);
  }
  return batches;
}

}  // namespace megalith::train
