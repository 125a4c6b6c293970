// Kernels of flat_buffer.h and adam.h over raw pointers.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "megalith/base/exact_sum.h"
#include "megalith/ops/update/adam.h"

namespace megalith::ops {

// add_squares, count_zeros and scale_and_check_ of flat_buffer.h.
void add_squares_cpu(c10::ScalarType dtype, const void* flat, int64_t n, ExactSum& sum);
int64_t count_zeros_cpu(c10::ScalarType dtype, const void* flat, int64_t n);
bool scale_and_check_cpu(c10::ScalarType dtype, void* flat, int64_t n, double factor);

// UpdateTensors as pointers: main and moments fp32 [n]; grad [n] of grad_dtype; param [n] of param_dtype, or nullptr if
// the model reads main.
struct UpdateArrays {
  int64_t n = 0;  // elements of every array
  float* main = nullptr;
  const void* grad = nullptr;
  c10::ScalarType grad_dtype = c10::ScalarType::Float;
  float* first = nullptr;   // exp_avg, or the momentum
  float* second = nullptr;  // exp_avg_sq; Adam only
  void* param = nullptr;
  c10::ScalarType param_dtype = c10::ScalarType::Float;
  const float* gate = nullptr;  // [2] on the device, CUDA only: {grad_scale, whether there is an update}
  int multiprocessors = 0;      // the most that adam_runs_cuda occupies; 0 means all
};
// The factors in the loops of Adam, computed in fp64 and rounded once.
struct AdamFactors {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon;
  float grad_scale;
  float keep;            // factor of the parameter: 1 - lr wd with decoupled decay, otherwise 1
  float added_decay;     // factor of the parameter in the gradient: wd without decoupled decay, otherwise 0
  float step_size;       // lr / (1 - β₁ᵗ)
  float root_corrected;  // 1 / √(1 - β₂ᵗ)
};

// Returns the factors of a step, the same for CPU and CUDA.
AdamFactors adam_factors(const AdamSettings& settings, const UpdateScalars& scalars);
// The updates of adam.h; `gate` is not read on the CPU, where the caller has applied it.
void adam_cpu(const UpdateArrays& arrays, const AdamSettings& settings, const UpdateScalars& scalars);
void sgd_cpu(const UpdateArrays& arrays, const SgdSettings& settings, const UpdateScalars& scalars);

// CUDA kernels (fp32, bf16, fp16) on `stream`, a cudaStream_t.
// Writes the sum of squares in fp64 to *sum, on the device; the order depends on n only. `workspace` has
// add_squares_workspace_cuda() doubles.
int64_t add_squares_workspace_cuda();
void add_squares_cuda(c10::ScalarType dtype, const void* flat, int64_t n, double* sum, double* workspace, void* stream);
// flat *= factor (writes nothing for 1); sets *broken, on the device, to 1 if an element was not finite before.
void scale_and_check_cuda(c10::ScalarType dtype, void* flat, int64_t n, double factor, int* broken, void* stream);
// gate [2] = {clip_factor, 1} of n sums of squares, {0, 0} if they are not finite.
void clip_gate_cuda(const double* squares, int64_t n, const ClipSettings& settings, float* gate, void* stream);
// Updates all elements with one set of factors.
void adam_cuda(const UpdateArrays& arrays, const AdamSettings& settings, const UpdateScalars& scalars, void* stream);
// All runs in one pass, which needs arrays that start and end at multiples of 4 elements (adam_runs_fit_cuda).
bool adam_runs_fit_cuda(const UpdateArrays& arrays);
void adam_runs_cuda(const UpdateArrays& arrays, const AdamSettings& settings, std::span<const UpdateRun> runs,
                    void* stream);
void sgd_cuda(const UpdateArrays& arrays, const SgdSettings& settings, const UpdateScalars& scalars, void* stream);

}  // namespace megalith::ops
