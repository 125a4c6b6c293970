// Shared by the two kernels that compute losses and gradients at once.
#pragma once

#include <cstdio>

#include "megalith/ops/kernel/cuda_math.cuh"
#include "megalith/ops/loss/cross_entropy_internal.h"

namespace megalith::ops {

// Prints a message and ends the kernel, and with it the program. An exception would need the host to wait.
__device__ inline void refuse_label(const LogitRows& rows, int64_t row, int64_t label) {
  if (threadIdx.x == 0)
    printf("cross-entropy: the label of token %lld is %lld; the vocabulary has ids 0 to %lld\n",
           static_cast<long long>(row), static_cast<long long>(label), static_cast<long long>(rows.valid - 1));
  __trap();
}

// log Σ exp of a row, and its loss.
struct RowLoss {
  double lse;
  float loss;
};
// Computes the loss from sum = Σ exp(logit - max), for any max: large terms are subtracted from each other first. With
// logits near 100, one rounding to fp32 is up to 4e-6, which a loss near 0.01 would show. One thread per row calls it,
// so that fp64 costs little.
__device__ inline RowLoss loss_of(double max, float sum, float total, float target, const LossWeights& weights) {
  const double log_sum = log(static_cast<double>(sum)), lse = max + log_sum;
  return {lse, static_cast<float>(log_sum + (max - weights.on_target * target - weights.off_target * total) +
                                  weights.z * lse * lse)};
}

}  // namespace megalith::ops
