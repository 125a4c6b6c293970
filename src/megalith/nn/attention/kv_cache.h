// KvCache: per layer, what generation remembers of the tokens so far: keys and values, or a recurrent state.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace megalith::nn {

// Holds one sequence. Capacity doubles when it is exhausted, so that the amortized cost of appending is constant. Used
// by one thread per rank.
class KvCache {
 public:
  explicit KvCache(int64_t layers) : layers_(static_cast<size_t>(layers)) {}

  // Returns the number of tokens that every layer has seen: the position where the next forward pass starts.
  int64_t tokens() const { return tokens_; }
  // Appends k, v [s, g, d] of new tokens to a layer of this rank; returns those of all tokens so far
  // [tokens + s, g, d]. Keys and values may differ in head size.
  std::pair<at::Tensor, at::Tensor> append(int64_t layer, const at::Tensor& k, const at::Tensor& v);
  // State of a layer without keys and values; its tensors are undefined until the first pass.
  struct Recurrent {
    at::Tensor inputs;  // inputs of the last few tokens, for a convolution
    at::Tensor state;
  };
  Recurrent& recurrent(int64_t layer) { return layers_.at(static_cast<size_t>(layer)).recurrent; }
  // Ends a forward pass of `count` tokens; call it once all layers have appended.
  void advance(int64_t count) { tokens_ += count; }

 private:
  struct Layer {
    at::Tensor keys, values;  // [capacity, g, d]; d may differ between keys and values
    Recurrent recurrent;
  };
  std::vector<Layer> layers_;
  int64_t tokens_ = 0;
};

}  // namespace megalith::nn
