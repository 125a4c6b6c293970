// A buffer to which an operation adds the fp32 gradient of a small parameter itself, instead of giving it to autograd.
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith::ops {

// Used on CUDA, where each step of the usual way of a small gradient (to the parameter's dtype, to autograd, to the
// gradient buffer) is a kernel launch of its own. The operation then returns no gradient. Buffer and flag must outlive
// the autograd graph.
struct GradTarget {
  at::Tensor sum = {};    // fp32, shape of the parameter, contiguous; undefined if there is no target
  bool* stale = nullptr;  // true if the next write has to overwrite the sum, which sets it to false

  // Whether an operation on x should write the gradient here.
  bool wanted(const at::Tensor& x) const { return sum.defined() && x.is_cuda() && sum.scalar_type() == at::kFloat; }
  // Returns whether to add to the sum (true) or to overwrite it; marks the sum as valid.
  bool take_add() const {
    const bool add = !*stale;
    *stale = false;
    return add;
  }
};

}  // namespace megalith::ops
