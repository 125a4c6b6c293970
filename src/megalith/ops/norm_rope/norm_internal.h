// The kernels of norm.h, over raw pointers.
//
// Legend: t rows, h row length. Tensors are contiguous. "acc" is the type a kernel computes in: fp64 for fp64,
// otherwise fp32.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace megalith::ops {

struct NormRows {
  c10::ScalarType dtype = c10::ScalarType::Float;  // of x, y and their gradients
  int64_t rows = 0;                                // t
  int64_t width = 0;                               // h
  bool centered = false;                           // LayerNorm: subtract the mean
  // x̂ is rounded to dtype before it meets the weight, as HF's Llama RMSNorm does. Changes nothing in fp32 and fp64.
  bool rounded = false;
  // On CUDA only: weight and bias are given in dtype, not in acc; and what is added to the weight.
  bool raw_weights = false;
  float weight_shift = 0;
};

struct NormForward {
  const void* x = nullptr;       // [t, h]
  const void* delta = nullptr;   // [t, h], added to x before the norm; nullptr: none
  void* sum = nullptr;           // [t, h] out: x + delta; with delta only
  const void* weight = nullptr;  // acc [h]
  const void* bias = nullptr;    // acc [h]; nullptr: none
  double epsilon = 0;
  void* y = nullptr;     // [t, h] out
  void* mean = nullptr;  // acc [t] out; centered only
  void* rstd = nullptr;  // acc [t] out: 1 / sqrt(variance or mean square + epsilon)
};
void norm_forward_cpu(const NormRows& shape, const NormForward& args);

struct NormBackward {
  const void* x = nullptr;              // [t, h], what was normalised
  const void* grad_y = nullptr;         // [t, h]
  const void* grad_residual = nullptr;  // [t, h], added to grad_x; nullptr: none
  const void* weight = nullptr;         // acc [h]
  const void* mean = nullptr;           // acc [t]; centered only
  const void* rstd = nullptr;           // acc [t]
  void* grad_x = nullptr;               // [t, h] out
  void* grad_weight = nullptr;          // acc [h] out
  void* grad_bias = nullptr;            // acc [h] out
  // On CUDA only: the types of grad_weight and grad_bias, and whether to add to what stands there, which is fp32 then.
  c10::ScalarType grad_weight_dtype = c10::ScalarType::Float;
  c10::ScalarType grad_bias_dtype = c10::ScalarType::Float;
  bool add_weight = false;
  bool add_bias = false;
};
// The weight's and the bias' gradients are summed by thread and then over the threads in order: for one number of
// threads the result is always the same.
void norm_backward_cpu(const NormRows& shape, const NormBackward& args);

// The twins on CUDA (fp32, bf16, fp16), on a cudaStream_t. `workspace`: as many floats as norm_backward_workspace_cuda
// says.
void norm_forward_cuda(const NormRows& shape, const NormForward& args, void* stream);
int64_t norm_backward_workspace_cuda(const NormRows& shape);
void norm_backward_cuda(const NormRows& shape, const NormBackward& args, float* workspace, void* stream);

}  // namespace megalith::ops
