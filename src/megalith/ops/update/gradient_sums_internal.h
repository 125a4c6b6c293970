// CUDA kernels of gradient_sums.h over raw pointers (fp32, bf16, fp16); `stream` is a cudaStream_t. On the CPU ATen's
// operations serve.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace megalith::ops {

// Sums dy [t, h] over t into sums, fp32 [h]; `add` adds to its values. `workspace` has bias_grad_workspace_cuda()
// floats.
int64_t bias_grad_workspace_cuda(int64_t t, int64_t h);
void bias_grad_cuda(c10::ScalarType dtype, const void* dy, int64_t t, int64_t h, float* sums, bool add,
                    float* workspace, void* stream);

// Adds dy [t, h] to the given rows [t] of sums, fp32 [v, h], atomically: the order of additions is not defined.
void add_to_rows_cuda(c10::ScalarType dtype, float* sums, const int64_t* rows, const void* dy, int64_t t, int64_t h,
                      void* stream);

}  // namespace megalith::ops
