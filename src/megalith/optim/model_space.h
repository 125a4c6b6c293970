// From a range of a flattened parameter to rectangles of the model's tensors: how the piece of optimizer state that a
// rank owns is named and placed, so that any other layout can find its own piece in it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "megalith/nn/parameter/parameter.h"

namespace megalith::optim {

// A rectangle of a tensor whose elements are neighbours in memory.
struct Rectangle {
  std::vector<int64_t> offset, extent;
  int64_t begin = 0;  // of its elements among those of the whole tensor
};

// Elements [begin, end) of a contiguous tensor as few rectangles: at most 2d-1 for d dimensions, so three for a matrix.
std::vector<Rectangle> rectangles(const std::vector<int64_t>& shape, int64_t begin, int64_t end);

// Elements [begin, end) of `parameter`, flattened, stand in `flat` [end - begin]: described under the names of the
// tensors in the parameter, each with `prefix` in front. Elements that are padding are left out.
std::vector<parallel::ShardedTensor> sharded_range(const nn::Parameter& parameter, int64_t begin, int64_t end,
                                                   const at::Tensor& flat, const std::string& prefix, int replica);

}  // namespace megalith::optim
