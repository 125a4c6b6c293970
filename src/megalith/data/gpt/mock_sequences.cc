#include "megalith/data/gpt/mock_sequences.h"

#include "megalith/data/gpt/numpy_random.h"

namespace megalith::data {

MockSequences::MockSequences(int64_t vocab_size, int64_t eod_id)
    : vocab_size_(vocab_size), eod_id_(eod_id), lengths_(numpy_mock_lengths(4096, 100'000)) {}

void MockSequences::read(int64_t sequence, int64_t offset, std::span<int64_t> out) const {
  const int64_t last = length(sequence) - 1;
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t at = offset + static_cast<int64_t>(i);
    out[i] = at == last ? eod_id_ : (at + 1) % vocab_size_;
  }
}

}  // namespace megalith::data
