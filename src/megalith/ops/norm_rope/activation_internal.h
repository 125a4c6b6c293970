// Kernels of activation.h over raw pointers.
//
// Legend: t rows, f width. Tensors are contiguous. "acc" is the type that a kernel computes in: fp64 for fp64,
// otherwise fp32.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "megalith/ops/norm_rope/activation.h"

namespace megalith::ops {

// Size and type of the output rows, and what is applied to them.
struct ActivationRows {
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t rows = 0;   // t
  int64_t width = 0;  // f
  Activation activation = Activation::kSilu;
  bool raw_bias = false;  // CUDA only: the bias is given in dtype, not in acc
};

// gate_up [t, 2f] -> y [t, f]
void gated_forward_cpu(const ActivationRows& shape, const void* gate_up, void* y);
// grad_y [t, f] -> grad [t, 2f], laid out as gate_up
void gated_backward_cpu(const ActivationRows& shape, const void* gate_up, const void* grad_y, void* grad);

// x [t, f], bias acc [f] or nullptr -> y [t, f]
void bias_forward_cpu(const ActivationRows& shape, const void* x, const void* bias, void* y);
// Writes grad_x [t, f], which may be grad_y itself, and grad_bias acc [f] unless that is nullptr. Sums the bias
// gradient per thread and then over the threads in order.
void bias_backward_cpu(const ActivationRows& shape, const void* x, const void* bias, const void* grad_y, void* grad_x,
                       void* grad_bias);

// CUDA twins (fp32, bf16, fp16) on `stream`, a cudaStream_t. They wait for nothing and allocate nothing.
// `weights`, fp32 [t], multiply the rows of y; nullptr means none. grad_weights [t] is written if there are weights.
// `workspace` has bias_backward_workspace_cuda() floats and is needed only for grad_bias, which is fp32; `add_bias`
// adds to its values.
void gated_forward_cuda(const ActivationRows& shape, const void* gate_up, const float* weights, void* y, void* stream);
void gated_backward_cuda(const ActivationRows& shape, const void* gate_up, const float* weights, const void* grad_y,
                         void* grad, float* grad_weights, void* stream);
void bias_forward_cuda(const ActivationRows& shape, const void* x, const void* bias, void* y, void* stream);
int64_t bias_backward_workspace_cuda(const ActivationRows& shape);
void bias_backward_cuda(const ActivationRows& shape, const void* x, const void* bias, const void* grad_y, void* grad_x,
                        void* grad_bias, bool add_bias, float* workspace, void* stream);

}  // namespace megalith::ops
