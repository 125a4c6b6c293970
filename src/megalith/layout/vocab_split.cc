// Splits the vocabulary over tensor-parallel ranks: [0, v/tp), [v/tp, 2v/tp), …, after padding it to a multiple of
// multiple * tp. With 50257 tokens, 128 and tp 2: 50432 ids, 25216 on each rank; the
// last 175 ids are padding.
#include "megalith/layout/vocab_split.h"

#include <algorithm>

#include "megalith/base/error.h"

namespace megalith::layout {

int64_t padded_vocab_size(int64_t vocab, int64_t multiple, int tp) {
  check<ConfigError>(vocab > 0 && multiple > 0 && tp > 0,
                     "a vocabulary of {} tokens cannot be padded with make_vocab_size_divisible_by {} and tp {}; all "
                     "must be positive",
                     vocab, multiple, tp);
  const int64_t unit = multiple * tp;
  return (vocab + unit - 1) / unit * unit;
}

IdRange vocab_range(int64_t padded_vocab, int tp, int tp_rank) {
  check(0 <= tp_rank && tp_rank < tp, "tp rank {} is not in a group of {}", tp_rank, tp);
  check<ConfigError>(padded_vocab > 0 && padded_vocab % tp == 0,
                     "a vocabulary of {} tokens cannot be cut over tp {}; pad it to a multiple of {} "
                     "(make_vocab_size_divisible_by)",
                     padded_vocab, tp, tp);
  const int64_t each = padded_vocab / tp;
  return {tp_rank * each, (tp_rank + 1) * each};
}

// Padding is at the end, so only the last ranks have any.
IdRange valid_vocab_range(int64_t vocab, int64_t padded_vocab, int tp, int tp_rank) {
  const IdRange range = vocab_range(padded_vocab, tp, tp_rank);
  return {std::min(range.begin, vocab), std::min(range.end, vocab)};
}

}  // namespace megalith::layout
