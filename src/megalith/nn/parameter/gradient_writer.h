// GradientWriter: where a layer writes a weight gradient that it makes part by part.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/nn/parameter/parameter.h"

namespace megalith::nn {

// Writes go to main_grad where that is attached, otherwise to a new tensor for autograd. Every element is written once:
//
//   GradientWriter grad(weight);
//   for (part …) ops::add_product(grad.into().narrow(…), left, right, grad.beta());
//   return grad.done();
class GradientWriter {
 public:
  explicit GradientWriter(Parameter& parameter);

  const at::Tensor& into() const { return into_; }  // of the parameter's shape
  double beta() const { return beta_; }             // 0: what lies there is overwritten; 1: it is added to
  // All parts are written: gives the gradient for autograd, undefined where main_grad has it.
  at::Tensor done() const;

 private:
  Parameter& parameter_;
  const bool to_main_grad_;
  const at::Tensor into_;
  const double beta_;
};

}  // namespace megalith::nn
