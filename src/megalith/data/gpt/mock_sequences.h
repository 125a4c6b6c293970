// MockSequences: the made-up data of `mock_data`, the same as Megatron's.
#pragma once

#include <vector>

#include "megalith/data/indexed/sequence_source.h"

namespace megalith::data {

// 100000 sequences of 1 to 4095 tokens: 1, 2, 3, … modulo the vocabulary, then EOD.
class MockSequences final : public SequenceSource {
 public:
  MockSequences(int64_t vocab_size, int64_t eod_id);

  const std::string& name() const override { return name_; }
  int64_t sequence_count() const override { return static_cast<int64_t>(lengths_.size()); }
  int64_t length(int64_t sequence) const override { return lengths_[static_cast<size_t>(sequence)]; }
  void read(int64_t sequence, int64_t offset, std::span<int64_t> out) const override;

 private:
  std::string name_ = "mock data";
  int64_t vocab_size_, eod_id_;
  std::vector<int32_t> lengths_;
};

}  // namespace megalith::data
