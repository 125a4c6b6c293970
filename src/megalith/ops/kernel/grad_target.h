// Where an operation adds the gradient of a small parameter itself, in fp32, in place of giving it to autograd.
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith::ops {

// Operations use it on CUDA, where each detour of a small gradient (to the parameter's dtype, to autograd, to the
// gradient buffer) is a kernel of its own. They return no gradient then. Everything in it outlives the graph.
struct GradTarget {
  at::Tensor sum = {};    // fp32, of the parameter's shape, contiguous; undefined: there is none
  bool* stale = nullptr;  // true: the next write overwrites; set to false by it

  bool wanted(const at::Tensor& x) const { return sum.defined() && x.is_cuda() && sum.scalar_type() == at::kFloat; }
  // Whether to add; afterwards the sum is no longer stale.
  bool take_add() const {
    const bool add = !*stale;
    *stale = false;
    return add;
  }
};

}  // namespace megalith::ops
