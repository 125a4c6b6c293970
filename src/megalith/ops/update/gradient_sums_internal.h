// The CUDA kernels of gradient_sums.h, over raw pointers, on a cudaStream_t; fp32, bf16 and fp16. On the CPU ATen's
// sums do the work.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace megalith::ops {

// dy [t, h] -> sums fp32 [h]; `add`: to what is there. `workspace`: as many floats as bias_grad_workspace_cuda says.
int64_t bias_grad_workspace_cuda(int64_t t, int64_t h);
void bias_grad_cuda(c10::ScalarType dtype, const void* dy, int64_t t, int64_t h, float* sums, bool add,
                    float* workspace, void* stream);

// sums fp32 [v, h] at rows [t] += dy [t, h]
void add_to_rows_cuda(c10::ScalarType dtype, float* sums, const int64_t* rows, const void* dy, int64_t t, int64_t h,
                      void* stream);

}  // namespace megalith::ops
