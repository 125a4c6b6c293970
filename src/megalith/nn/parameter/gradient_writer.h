// GradientWriter: the destination of a weight gradient that a layer computes part by part.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/nn/parameter/parameter.h"

namespace megalith::nn {

// Writes to main_grad if that is attached, otherwise to a new tensor for autograd. Every element is written once:
//
//   GradientWriter grad(weight);
//   for (part …) ops::add_gemm(grad.into().narrow(…), left, right, grad.beta());
//   return grad.done();
class GradientWriter {
 public:
  explicit GradientWriter(Parameter& parameter);

  const at::Tensor& into() const { return into_; }  // the destination, with the parameter's shape
  double beta() const { return beta_; }             // 0 to overwrite the destination, 1 to add to it
  // Call once all parts are written. Returns the gradient for autograd, undefined if it is in main_grad.
  at::Tensor done() const;

 private:
  Parameter& parameter_;
  const bool to_main_grad_;
  const at::Tensor into_;
  const double beta_;
};

}  // namespace megalith::nn
