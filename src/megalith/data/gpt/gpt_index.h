// The three indices that make samples of equal length from sequences of any length, with Megatron's rules:
//
//   document index  the sequences of all epochs, shuffled                                       [epochs · sequences]
//   sample index    where each sample starts: entry of the document index, token of that entry  [samples + 1, 2]
//   shuffle index   the order in which samples are drawn                                        [samples]
//
// A sample has seq_length + 1 tokens; the next one starts with its last token. With several epochs, the last one is
// kept apart (drawn after all others) when less than 80 % of it is needed.
#pragma once

#include <cstdint>
#include <optional>

#include "megalith/data/gpt/index_array.h"
#include "megalith/data/indexed/sequence_source.h"

namespace megalith::data {

// Which sequences make which samples.
struct GptIndexRequest {
  int64_t begin = 0, end = 0;             // sequences of the source: [begin, end)
  std::optional<int64_t> samples;         // at least so many; empty: what one epoch gives
  int64_t seq_length = 0;                 // tokens of a sample, labels not counted
  uint32_t seed = 0;                      // of all three indices
  bool keep_last_partial_sample = false;  // the rest at the end is a sample, too, which is padded
};

// How often the sequences are used.
struct EpochPlan {
  int64_t tokens_per_epoch = 0;
  int64_t epochs = 1;
  int64_t samples = 0;  // that the epochs give
  bool separate_last_epoch = false;
  int64_t samples_before_last = 0;  // of the epochs before the last; meaningful when that is separate
};

struct GptIndices {
  IndexArray documents;  // int32
  IndexArray samples;    // int32; int64 when the document index or a sequence is longer than 2^31 - 1
  IndexArray shuffle;    // uint32; int64 from 2^32 - 2 samples on
};

// Reads the lengths of the sequences. Throws DataError, naming the source, when they hold no token or are more than
// 2^31 - 1.
EpochPlan plan_epochs(const SequenceSource& source, const GptIndexRequest& request);

// Time and memory are linear in epochs · sequences + samples.
GptIndices build_gpt_indices(const SequenceSource& source, const GptIndexRequest& request);

// Throws DataError naming `name` when indices that were read from files have other shapes than the request's.
void check_gpt_indices(const GptIndices& indices, const SequenceSource& source, const GptIndexRequest& request,
                       const std::string& name);

}  // namespace megalith::data
