// Kernels of norm.h over raw pointers.
//
// Legend: t rows, h row length. Tensors are contiguous. "acc" is the type that a kernel computes in: fp64 for fp64,
// otherwise fp32.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace megalith::ops {

// Size, type and kind of the rows of one call, forward or backward.
struct NormRows {
  c10::ScalarType dtype = c10::ScalarType::Float;  // type of x, sum and their gradients
  int64_t rows = 0;                                // t
  int64_t width = 0;                               // h
  bool centered = false;                           // LayerNorm: subtract the mean
  // x̂ is rounded to dtype before it is multiplied by the weight, as in HF's Llama RMSNorm. No effect in fp32 and fp64.
  bool rounded = false;
  bool raw_weights = false;  // CUDA only: weight and bias are given in branch(), not in acc
  float weight_shift = 0;    // CUDA only: added to each weight (1 for zero-centered weights)
  // Type of y, delta and their gradients, if it is narrower: bf16 or fp16 beside a residual stream in fp32.
  c10::ScalarType narrow = c10::ScalarType::Undefined;

  // The type of y and delta.
  c10::ScalarType branch() const { return narrow == c10::ScalarType::Undefined ? dtype : narrow; }
};

// Pointers of a forward call.
struct NormForward {
  const void* x = nullptr;       // [t, h]
  const void* delta = nullptr;   // [t, h], added to x before the norm; may be nullptr
  void* sum = nullptr;           // [t, h] out: x + delta; only with delta
  const void* weight = nullptr;  // acc [h]
  const void* bias = nullptr;    // acc [h]; may be nullptr
  double epsilon = 0;
  void* y = nullptr;     // [t, h] out
  void* mean = nullptr;  // acc [t] out; centered only
  void* rstd = nullptr;  // acc [t] out: 1 / sqrt(variance or mean square + epsilon)
};
// Reads x (and delta) once and writes y (and sum) once; rows are distributed over the threads.
void norm_forward_cpu(const NormRows& shape, const NormForward& args);

// Pointers of a backward call.
struct NormBackward {
  const void* x = nullptr;              // [t, h], the input of the norm: x, or x + delta
  const void* grad_y = nullptr;         // [t, h]
  const void* grad_residual = nullptr;  // [t, h], added to grad_x; may be nullptr
  const void* weight = nullptr;         // acc [h]
  const void* mean = nullptr;           // acc [t]; centered only
  const void* rstd = nullptr;           // acc [t]
  void* grad_x = nullptr;               // [t, h] out
  void* grad_delta = nullptr;           // [t, h] out: grad_x in branch(); may be nullptr
  void* grad_weight = nullptr;          // acc [h] out
  void* grad_bias = nullptr;            // acc [h] out
  // CUDA only: the types of grad_weight and grad_bias, and whether to add to their values, which are fp32 then.
  c10::ScalarType grad_weight_dtype = c10::ScalarType::Float;
  c10::ScalarType grad_bias_dtype = c10::ScalarType::Float;
  bool add_weight = false;
  bool add_bias = false;
};
// Sums the gradients of weight and bias per thread and then over the threads in order: the result depends on the number
// of threads, but not on their timing.
void norm_backward_cpu(const NormRows& shape, const NormBackward& args);

// CUDA twins (fp32, bf16, fp16) on `stream`, a cudaStream_t. `workspace` has norm_backward_workspace_cuda() floats.
// Rows have at most 65536 elements of 16 bits or 32768 of fp32 in vectors of 16 bytes; 8192 where vectors do not fit.
void norm_forward_cuda(const NormRows& shape, const NormForward& args, void* stream);
int64_t norm_backward_workspace_cuda(const NormRows& shape);
void norm_backward_cuda(const NormRows& shape, const NormBackward& args, float* workspace, void* stream);

}  // namespace megalith::ops
