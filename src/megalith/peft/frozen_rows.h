// FrozenRows: keeps some rows of a trained parameter at their values.
//
// Layers fuse tensors that a user names one by one: query, key and value share a bias. Where only some of them are
// trained, the parameter as a whole is, and the gradient of the other rows is set to zero before anything reads it. An
// element whose gradients are all zero and that does not decay, which no bias does, never changes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "megalith/nn/parameter/parameter.h"

namespace torch::autograd {
struct Node;
}

namespace megalith::peft {

// Create it before the gradient buffers (optim), whose hook may start to reduce the gradient. The parameter outlives
// it.
class FrozenRows {
 public:
  // Rows [first, first + count) of the parameter on this rank.
  struct Range {
    int64_t first = 0, count = 0;
  };
  // `parameter` already requires a gradient.
  FrozenRows(nn::Parameter& parameter, std::vector<Range> ranges);
  ~FrozenRows();
  FrozenRows(FrozenRows&&) noexcept = default;
  FrozenRows& operator=(FrozenRows&&) = delete;
  FrozenRows(const FrozenRows&) = delete;
  FrozenRows& operator=(const FrozenRows&) = delete;

 private:
  std::shared_ptr<torch::autograd::Node> accumulator_;  // empty once moved from
  uintptr_t hook_ = 0;
};

}  // namespace megalith::peft
