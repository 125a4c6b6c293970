// Grouped-query attention with fewer key/value heads than tensor-parallel ranks: every rank computes an equal slice of
// the key and value rows, and collects the one head it needs from the ranks that computed it.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/comm/group.h"
#include "megalith/ops/norm_rope/rope.h"

namespace megalith::nn {

// qkv [t, n d + 2 g d/tp] (own query heads, slices of the rows of all key heads and all value heads)
//   -> [t, (n + 2) d]: own query heads and the one key and value head they use.
// n is the number of query heads of this rank, g that of key/value heads of the model, a divisor of tp. Backward sums
// the gradient of a head over the ranks that used it.
at::Tensor exchange_kv(const at::Tensor& qkv, const ops::QkvHeads& heads, int64_t model_kv_heads,
                       const comm::Group& tp);

}  // namespace megalith::nn
