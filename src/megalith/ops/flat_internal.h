// The CPU kernels of flat.h and adam.h, over raw pointers.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "megalith/base/exact_sum.h"
#include "megalith/ops/adam.h"

namespace megalith::ops {

void add_squares_cpu(c10::ScalarType dtype, const void* flat, int64_t n, ExactSum& sum);
int64_t count_zeros_cpu(c10::ScalarType dtype, const void* flat, int64_t n);
bool scale_and_check_cpu(c10::ScalarType dtype, void* flat, int64_t n, double factor);

// main, moments fp32 [n]; grad [n] of grad_dtype; param [n] of param_dtype, nullptr: main is the parameter.
struct UpdateArrays {
  int64_t n = 0;
  float* main = nullptr;
  const void* grad = nullptr;
  c10::ScalarType grad_dtype = c10::ScalarType::Float;
  float* first = nullptr;   // exp_avg, or the momentum
  float* second = nullptr;  // exp_avg_sq; Adam only
  void* param = nullptr;
  c10::ScalarType param_dtype = c10::ScalarType::Float;
};
void adam_cpu(const UpdateArrays& arrays, const AdamSettings& settings, const UpdateScalars& scalars);
void sgd_cpu(const UpdateArrays& arrays, const SgdSettings& settings, const UpdateScalars& scalars);

}  // namespace megalith::ops
