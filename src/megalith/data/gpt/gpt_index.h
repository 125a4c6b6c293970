// The three indices that turn sequences of any length into samples of equal length, by Megatron's rules:
//
//   document index  the sequences of all epochs, shuffled                                       [epochs · sequences]
//   sample index    where each sample starts: entry of the document index, token of that entry  [samples + 1, 2]
//   shuffle index   the order in which samples are drawn                                        [samples]
//
// A sample has seq_length + 1 tokens; the next one starts with its last token. With several epochs, the last one is
// kept separate (drawn after all others) if less than 80 % of it is needed.
#pragma once

#include <cstdint>
#include <optional>

#include "megalith/data/gpt/index_array.h"
#include "megalith/data/indexed/sequence_source.h"

namespace megalith::data {

// The sequences to use and the samples to make from them.
struct GptIndexRequest {
  int64_t begin = 0, end = 0;             // sequences of the source: [begin, end)
  std::optional<int64_t> samples;         // at least this many; std::nullopt: one epoch
  int64_t seq_length = 0;                 // tokens per sample, without the additional label
  uint32_t seed = 0;                      // for all three indices
  bool keep_last_partial_sample = false;  // the remainder at the end becomes a padded sample
};

// How often the sequences are used. Follows from the lengths of the sequences and the request; nothing random is in it.
struct EpochPlan {
  int64_t tokens_per_epoch = 0;
  int64_t epochs = 1;
  int64_t samples = 0;  // in all epochs
  bool separate_last_epoch = false;
  int64_t samples_before_last = 0;  // in the epochs before the last; used only if that is separate
};

// The three indices.
struct GptIndices {
  IndexArray documents;  // int32
  IndexArray samples;    // int32; int64 if the document index or a sequence is longer than 2^31 - 1
  IndexArray shuffle;    // uint32; int64 for 2^32 - 2 samples or more
};

// Computes how many epochs are needed. Reads the lengths of the sequences. Throws a DataError that names the source if
// it has no tokens or more than 2^31 - 1 sequences.
EpochPlan plan_epochs(const SequenceSource& source, const GptIndexRequest& request);

// Builds the indices. Time and memory are linear in epochs · sequences + samples. `shows_progress` says on stderr how
// far it is, for the one process of many that builds them.
GptIndices build_gpt_indices(const SequenceSource& source, const GptIndexRequest& request, bool shows_progress = false);

// Throws a DataError that names `name` if indices read from files do not have the shapes of the request.
void check_gpt_indices(const GptIndices& indices, const SequenceSource& source, const GptIndexRequest& request,
                       const std::string& name);

}  // namespace megalith::data
