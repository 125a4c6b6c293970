// Model space: maps a range of a flattened parameter to rectangles of the model's tensors. Optimizer state is saved
// under these names and positions, so that a run with any other layout can find its own pieces.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "megalith/nn/parameter/parameter.h"

namespace megalith::optim {

// A rectangle of a tensor whose elements are contiguous in memory.
struct Rectangle {
  std::vector<int64_t> offset, extent;  // in each dimension
  int64_t begin = 0;                    // flat index of its first element in the whole tensor
};

// Splits elements [begin, end) of a contiguous tensor into rectangles: at most 2d-1 for d dimensions, so three for a
// matrix.
std::vector<Rectangle> rectangles(const std::vector<int64_t>& shape, int64_t begin, int64_t end);

// Describes `flat` [end - begin], which holds elements [begin, end) of the flattened `parameter`, as pieces of the
// tensors that the parameter consists of; each name gets `prefix` in front. Padding is left out.
std::vector<parallel::ShardedTensor> sharded_range(const nn::Parameter& parameter, int64_t begin, int64_t end,
                                                   const at::Tensor& flat, const std::string& prefix, int replica);

}  // namespace megalith::optim
