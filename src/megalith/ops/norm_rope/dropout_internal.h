// Kernels of dropout.h over raw pointers.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "megalith/ops/kernel/drawn_seed_internal.h"

namespace megalith::ops {

// Arguments of a forward call.
struct DropoutForward {
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t elements = 0;
  double p = 0;                    // probability of a zero
  DrawnSeed seed{};                // determines the mask, whatever the number of threads
  const void* x = nullptr;         // [elements]
  const void* residual = nullptr;  // [elements], added; may be nullptr
  void* y = nullptr;               // [elements] out
  uint8_t* mask = nullptr;         // [elements] out: 1 where x is kept; may be nullptr
};
// y = x / (1 - p) where a random word is at least p · 2^32, else 0, plus the residual. The mask is a function of seed
// and position (Philox), the same on every device.
void dropout_forward_cpu(const DropoutForward& args);

// Writes grad_x = grad_y / (1 - p) where the mask is 1, else 0.
void dropout_backward_cpu(c10::ScalarType dtype, int64_t elements, double p, const void* grad_y, const uint8_t* mask,
                          void* grad_x);

// CUDA twin of dropout_forward_cpu (fp32, bf16, fp16) on `stream`, a cudaStream_t, with the same mask for the same
// seed. It writes no mask: backward is the same pass over grad_y with the same seed.
void dropout_forward_cuda(const DropoutForward& args, void* stream);

}  // namespace megalith::ops
