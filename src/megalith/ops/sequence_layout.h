// SequenceLayout: which tokens of a micro-batch form which sequence. Hidden states are [tokens, hidden] everywhere;
// this is what a batch dimension, an attention mask and position ids are elsewhere (`PackedSeqParams` of the
// reference).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace megalith::ops {

// Sequences stand one behind the other. Attention never crosses from one into another; positions restart in each.
// Immutable; copies are cheap and share the tensors made on demand. Threads may share one.
class SequenceLayout {
 public:
  SequenceLayout() = default;  // no tokens
  // `batch` sequences of equal length, as a padded batch: takes the dense attention path. Padding at the end of a
  // sequence needs no mask under causal attention; its loss is ignored by label.
  static SequenceLayout dense(int64_t batch, int64_t length);
  // Sequences of the given lengths, each at least 1.
  static SequenceLayout packed(const std::vector<int64_t>& lengths);
  // From cumulative lengths: starts with 0, ends with the number of tokens, increasing. Throws DataError otherwise.
  static SequenceLayout from_cumulative(std::vector<int64_t> cumulative);
  // The same sequences with other positions, int64 [t]: tokens that were cut out of a longer whole, generation with a
  // cache. Context-parallel slices say themselves what max_position() is: that of the whole, on every rank.
  SequenceLayout with_positions(at::Tensor positions) const;
  SequenceLayout with_positions(at::Tensor positions, int64_t max_position) const;

  int64_t tokens() const;
  int64_t sequences() const;
  int64_t longest() const;       // tokens of the longest sequence
  int64_t max_position() const;  // the largest position plus one
  bool uniform() const;          // all sequences have the same length: [sequences, longest] is a dense batch
  const std::vector<int64_t>& cumulative() const;  // [sequences + 1]

  // Position of each token in its sequence, int64 [t].
  at::Tensor positions(at::Device device) const;
  // cumulative() as int32 [sequences + 1], as variable-length kernels want it.
  at::Tensor cumulative_tensor(at::Device device) const;

 private:
  struct Data;
  explicit SequenceLayout(std::shared_ptr<Data> data) : data_(std::move(data)) {}
  const Data& data() const;
  std::shared_ptr<Data> data_;
};

}  // namespace megalith::ops
