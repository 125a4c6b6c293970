// beta is 1 only if main_grad already holds a sum: a new tensor and a stale main_grad are overwritten.
#include "megalith/nn/parameter/gradient_writer.h"

#include <ATen/ATen.h>

namespace megalith::nn {

GradientWriter::GradientWriter(Parameter& parameter)
    : parameter_(parameter),
      to_main_grad_(parameter.grad.main_grad.defined()),
      into_(to_main_grad_ ? parameter.grad.main_grad : at::empty_like(parameter.value)),
      beta_(to_main_grad_ && !parameter.grad.stale ? 1 : 0) {}

at::Tensor GradientWriter::done() const {
  if (!to_main_grad_) return into_;
  parameter_.grad.stale = false;
  return {};
}

}  // namespace megalith::nn
