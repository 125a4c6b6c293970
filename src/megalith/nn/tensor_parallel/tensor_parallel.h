// TensorParallel: the group that splits the weights, and how activations are laid out between blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "megalith/comm/group.h"
#include "megalith/ops/gemm/fp8.h"

namespace megalith::nn {

// Between blocks, hidden states are either whole on every rank ([t, h]) or, with sequence parallelism, split over the
// group along the tokens ([t/tp, h]; t is a multiple of tp).
struct TensorParallel {
  comm::Group group;
  bool sequence_parallel = false;
  std::optional<ops::Fp8Recipe> fp8 = {};  // for products of linear layers; nullopt = in the dtype of their tensors
  bool overlap = false;  // collectives of sequence parallelism travel in slices beside the products (sliced_product.h)
  int64_t slices = 0;    // slices of each product, if it has as many rows; 0 = by its size

  // This rank in the group, the size of the group, and whether tokens are split over several ranks.
  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
  bool splits_tokens() const { return sequence_parallel && size() > 1; }

  // Returns {first, count} of this rank's block of `total` items; `total` is a multiple of size().
  std::pair<int64_t, int64_t> share(int64_t total) const { return {total / size() * rank(), total / size()}; }
};

}  // namespace megalith::nn
