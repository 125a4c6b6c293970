// SequenceLayout says which tokens of a micro-batch form which sequence. Hidden states are [tokens, hidden] everywhere;
// this class replaces the batch dimension, the attention mask and the position ids of other libraries
// (`PackedSeqParams` of the reference).
//
//   packed({3, 2})   tokens     a b c d e        sequences abc and de
//                    positions  0 1 2 0 1        cumulative 0 3 5
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace megalith::ops {

// Sequences are stored one after the other. Attention never crosses from one into another; positions restart in each.
// Immutable and thread-safe; copies are cheap and share the tensors that are made on demand.
class SequenceLayout {
 public:
  SequenceLayout() = default;  // no tokens
  // `batch` sequences of equal length, as in a padded batch; attention then takes its dense path. Padding at the end of
  // a sequence needs no mask under causal attention; its labels exclude it from the loss.
  static SequenceLayout dense(int64_t batch, int64_t length);
  // Sequences of the given lengths, each at least 1.
  static SequenceLayout packed(const std::vector<int64_t>& lengths);
  // From cumulative lengths, which start with 0, increase, and end with the number of tokens. Throws DataError
  // otherwise.
  static SequenceLayout from_cumulative(std::vector<int64_t> cumulative);
  // The same sequences with other positions, int64 [t]: for tokens cut out of longer sequences, and for generation with
  // a cache. Context-parallel slices pass `max_position`, which is that of the whole sequence on every rank; without
  // it, the host reads the largest position back.
  SequenceLayout with_positions(at::Tensor positions) const;
  SequenceLayout with_positions(at::Tensor positions, int64_t max_position) const;
  // The same sequences with three coordinates per token, time, height and width: int64 [3, t], or fp32 [3, t] where
  // they are not whole. Rotary embeddings with sections turn by them (norm_rope/rope.h); positions stay as they are.
  SequenceLayout with_coordinates(at::Tensor coordinates) const;
  // The same sequences, of which no token before the padding has a position of `max_position` or more.
  SequenceLayout with_max_position(int64_t max_position) const;

  int64_t tokens() const;  // t, of all sequences together
  int64_t sequences() const;
  int64_t longest() const;       // tokens of the longest sequence
  int64_t max_position() const;  // the largest position plus one; without padding, if with_max_position() told
  bool uniform() const;          // all sequences have the same length: [sequences, longest] is a dense batch
  const std::vector<int64_t>& cumulative() const;  // [sequences + 1]

  // Returns the position of each token in its sequence, int64 [t].
  at::Tensor positions(at::Device device) const;
  // Returns the coordinates of with_coordinates(), [3, t]. Requires has_coordinates().
  at::Tensor coordinates(at::Device device) const;
  bool has_coordinates() const;
  // Returns cumulative() as int32 [sequences + 1], as variable-length attention kernels want it.
  at::Tensor cumulative_tensor(at::Device device) const;

  // Returns a value that follows from the lengths of the sequences (an order of tokens, another layout), which all
  // layers need and only the first one should make: `make()` runs at the first request for `key`, and its result is
  // kept as long as the layout. A key belongs to one type, and names everything else that the value depends on, such as
  // the device.
  template <typename Make>
  const std::invoke_result_t<Make>& derived(const std::string& key, const Make& make) const {
    using Value = std::invoke_result_t<Make>;
    std::shared_ptr<const void> value = kept(key);
    if (!value) value = keep(key, std::make_shared<const Value>(make()));
    return *static_cast<const Value*>(value.get());
  }

 private:
  struct Data;
  // Values by key; keep() returns the one that came first.
  std::shared_ptr<const void> kept(const std::string& key) const;
  std::shared_ptr<const void> keep(const std::string& key, std::shared_ptr<const void> value) const;
  explicit SequenceLayout(std::shared_ptr<Data> data) : data_(std::move(data)) {}
  const Data& data() const;
  std::shared_ptr<Data> data_;
};

}  // namespace megalith::ops
