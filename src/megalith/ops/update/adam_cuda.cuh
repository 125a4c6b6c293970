// Shared by the kernels of Adam, over fp32 state (flat_buffer_cuda.cu) and over stored state (stored_adam_cuda.cu): the
// formula, the gate, and the table of runs. Both kernels compute the same bits from the same numbers.
#pragma once

#include <span>

#include "megalith/ops/kernel/cuda_math.cuh"
#include "megalith/ops/update/flat_buffer_internal.h"

namespace megalith::ops {

// Reads the gate on the device: returns false if there is no update, otherwise sets grad_scale. nullptr is an open
// gate.
__device__ inline bool passes(const float* gate, float& grad_scale) {
  if (gate == nullptr) return true;
  grad_scale = gate[0];
  return gate[1] != 0;
}

// m = β₁m + (1-β₁)g,  v = β₂v + (1-β₂)g²,  p = p keep - step_size m / (√v / √(1-β₂ᵗ) + ε), in the order of operations
// of the CPU kernel. `g` is overwritten.
template <int n>
__device__ inline void adam_elements(float (&value)[n], float (&g)[n], float (&first)[n], float (&second)[n],
                                     const AdamFactors& f) {
#pragma unroll
  for (int j = 0; j < n; ++j) {
    g[j] = g[j] * f.grad_scale + f.added_decay * value[j];
    first[j] = f.beta1 * first[j] + f.one_minus_beta1 * g[j];
    second[j] = f.beta2 * second[j] + f.one_minus_beta2 * g[j] * g[j];
    value[j] = value[j] * f.keep - f.step_size * first[j] / (sqrtf(second[j]) * f.root_corrected + f.epsilon);
  }
}

// The factors that differ between runs, a kernel parameter. Padding belongs to the run that follows it; it is zero and
// stays so.
struct RunTable {
  static constexpr int kMost = 128;
  int count = 0;
  int64_t end[kMost];
  float keep[kMost], added_decay[kMost], step_size[kMost];

  // Sets the factors of the first run whose end is after element `at`, found in at most seven steps; the threads of a
  // warp nearly always find the same one.
  __device__ void take_factors(int64_t at, AdamFactors& f) const {
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (at < end[middle])
        high = middle;
      else
        low = middle + 1;
    }
    f.keep = keep[low];
    f.added_decay = added_decay[low];
    f.step_size = step_size[low];
  }
};

// Makes the table of at most RunTable::kMost runs.
inline RunTable run_table(const AdamSettings& settings, std::span<const UpdateRun> runs) {
  RunTable table;
  table.count = static_cast<int>(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    const AdamFactors factors = adam_factors(settings, runs[i].scalars);
    table.end[i] = runs[i].end;
    table.keep[i] = factors.keep;
    table.added_decay[i] = factors.added_decay;
    table.step_size[i] = factors.step_size;
  }
  return table;
}

// The threads of a block of the kernels that are confined to some multiprocessors: one block for each of those, since
// 1024 threads with more than 32 registers leave no room for a second one. Few multiprocessors reach as much memory as
// they have requests in flight, so that a thread has the loads of two vectors at a time.
constexpr int kConfinedThreads = 1024;

}  // namespace megalith::ops
