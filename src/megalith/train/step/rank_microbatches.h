// Cuts whole micro-batches, as the collator makes them, to what the passes of a rank read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megalith/data/micro_batch.h"

namespace megalith::train {

// The part of a micro-batch that a rank reads.
struct RankSlice {
  int cp_rank = 0, cp = 1;  // its slice, and the number of slices
  int64_t mtp_layers = 0;   // multi-token-prediction layers that it trains: 0 on other stages and in evaluation
};

// Returns micro-batches with the tokens further on (MicroBatch::further), and of everything that has an entry per token
// this context-parallel rank's slice: ids, labels, further tokens, such extra tensors and the layout. Counts
// (loss_tokens, samples, …) and other extra tensors stay those of the whole. The tokens further on are taken from the
// whole, before it is cut: they cross the borders of slices, and end with their sequences. Throws DataError for a
// sequence whose length is not a multiple of 2·cp.
std::vector<data::MicroBatch> rank_microbatches(std::span<const data::MicroBatch> whole, const RankSlice& of);

}  // namespace megalith::train
