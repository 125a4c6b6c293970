// What the sharded layers of a rank share: the group that splits the weights, and how activations lie between blocks.
#pragma once

#include <cstdint>
#include <utility>

#include "megalith/comm/group.h"

namespace megalith::nn {

// Between blocks hidden states are whole on every rank ([t, h]), or, with sequence parallelism, split over the group
// along the tokens ([t/tp, h]; t is a multiple of tp).
struct TensorParallel {
  comm::Group group;
  bool sequence_parallel = false;

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
  bool splits_tokens() const { return sequence_parallel && size() > 1; }

  // {first, count} of `total` things dealt in equal blocks; `total` is a multiple of size().
  std::pair<int64_t, int64_t> share(int64_t total) const { return {total / size() * rank(), total / size()}; }
};

}  // namespace megalith::nn
