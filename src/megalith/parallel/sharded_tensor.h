// ShardedTensor: how a rank describes the part of a named global tensor that it holds.
//
// The name and the global shape are the same for every layout, so one layout can read what another wrote: each rank
// asks for its own rectangle. A fused parameter (query, key and value in one matrix) is described by several of these,
// one per tensor that it joins.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace megalith::parallel {

// One rectangle of one tensor.
struct ShardedTensor {
  std::string name;                   // "layers.3.attention.q.weight": layers are counted over the whole model
  std::vector<int64_t> global_shape;  // shape of the whole tensor, without padding
  std::vector<int64_t> offset;        // per dimension, the first element held here
  at::Tensor local;                   // the rectangle: a view into the rank's own memory; may be empty
  int replica = 0;                    // ranks with the same rectangle are numbered from 0; number 0 writes it
  // Set where the rank's memory holds the elements in another form: returns them. `local` then has the shape, the dtype
  // and no memory (it is on the device `meta`).
  std::function<at::Tensor()> load{};

  at::Tensor data() const { return load ? load() : local; }
};

}  // namespace megalith::parallel
