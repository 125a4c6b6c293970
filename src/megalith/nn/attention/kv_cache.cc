// Buffers grow by doubling: n tokens cost at most 2 n copied rows in all, and at most half of a buffer is unused.
#include "megalith/nn/attention/kv_cache.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace megalith::nn {

namespace {

// Appends `added` to the first `tokens` rows of `buffer`, in place if the capacity allows; returns a view of all rows.
at::Tensor append_rows(at::Tensor& buffer, int64_t tokens, const at::Tensor& added) {
  const int64_t total = tokens + added.size(0);
  if (!buffer.defined() || buffer.size(0) < total) {
    auto shape = added.sizes().vec();
    shape[0] = std::max<int64_t>(total, 2 * tokens);  // at least doubles
    at::Tensor larger = at::empty(shape, added.options());
    if (tokens > 0) larger.narrow(0, 0, tokens).copy_(buffer.narrow(0, 0, tokens));
    buffer = larger;
  }
  buffer.narrow(0, tokens, added.size(0)).copy_(added);
  return buffer.narrow(0, 0, total);
}

}  // namespace

std::pair<at::Tensor, at::Tensor> KvCache::append(int64_t layer, const at::Tensor& k, const at::Tensor& v) {
  Layer& entry = layers_.at(static_cast<size_t>(layer));
  at::Tensor keys = append_rows(entry.keys, tokens_, k);
  at::Tensor values = append_rows(entry.values, tokens_, v);
  return {keys, values};
}

}  // namespace megalith::nn
