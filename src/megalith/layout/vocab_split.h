// How the vocabulary is padded and cut over the tensor-parallel ranks.
#pragma once

#include <cstdint>

namespace megalith::layout {

// Token ids [begin, end).
struct IdRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const IdRange&) const = default;
};

// The smallest multiple of multiple * tp that holds `vocab` ids (`multiple` is make_vocab_size_divisible_by). Throws
// ConfigError unless all are positive.
int64_t padded_vocab_size(int64_t vocab, int64_t multiple, int tp);

// The ids of a tp rank, padding included: equal parts in rank order. Throws ConfigError when tp does not divide
// `padded_vocab`.
IdRange vocab_range(int64_t padded_vocab, int tp, int tp_rank);

// The same without the padding: what of the range is below `vocab`. Empty ranges start and end at `vocab`.
IdRange valid_vocab_range(int64_t vocab, int64_t padded_vocab, int tp, int tp_rank);

}  // namespace megalith::layout
