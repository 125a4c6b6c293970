// KvCache: what a generation keeps of the tokens it has seen, layer by layer: keys and values, or a state.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace megalith::nn {

// One sequence. Grows by doubling, so that appending costs nothing on average. One thread a rank.
class KvCache {
 public:
  explicit KvCache(int64_t layers) : layers_(static_cast<size_t>(layers)) {}

  // Tokens seen by every layer so far: where the next forward pass starts.
  int64_t tokens() const { return tokens_; }
  // Keeps k, v [s, g, d] of new tokens for a layer of this rank; returns those of all tokens so far [tokens + s, g, d].
  // Keys and values may differ in size.
  std::pair<at::Tensor, at::Tensor> append(int64_t layer, const at::Tensor& k, const at::Tensor& v);
  // What a layer without keys and values keeps of the tokens so far; undefined at the start.
  struct Recurrent {
    at::Tensor inputs;  // of the last few tokens, for a convolution
    at::Tensor state;
  };
  Recurrent& recurrent(int64_t layer) { return layers_.at(static_cast<size_t>(layer)).recurrent; }
  // Ends a forward pass of `count` tokens, all layers have appended.
  void advance(int64_t count) { tokens_ += count; }

 private:
  struct Layer {
    at::Tensor keys, values;  // [capacity, g, d]; d of keys and of values may differ
    Recurrent recurrent;
  };
  std::vector<Layer> layers_;
  int64_t tokens_ = 0;
};

}  // namespace megalith::nn
