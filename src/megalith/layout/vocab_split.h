// Pads the vocabulary and splits it over the tensor-parallel ranks.
#pragma once

#include <cstdint>

namespace megalith::layout {

// Token ids [begin, end).
struct IdRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const IdRange&) const = default;
};

// Returns the smallest multiple of multiple * tp that holds `vocab` ids (`multiple` is make_vocab_size_divisible_by).
// Throws ConfigError unless all are positive.
int64_t padded_vocab_size(int64_t vocab, int64_t multiple, int tp);

// Returns the ids of a tp rank, including padding: equal parts in rank order. Throws ConfigError when tp does not
// divide `padded_vocab`.
IdRange vocab_range(int64_t padded_vocab, int tp, int tp_rank);

// Returns the same range without padding: the ids below `vocab`. Empty ranges start and end at `vocab`.
IdRange valid_vocab_range(int64_t vocab, int64_t padded_vocab, int tp, int tp_rank);

}  // namespace megalith::layout
