// Normal numbers on CUDA: one thread per element (each computes the pair of its counter and keeps one half), then the
// element gridDim.x · 256 further on. Writes 4 bytes per element and reads nothing.
//
//   u₁ = (word 0 + 1) / 2^32 in (0, 1],  u₂ = word 1 / 2^32;   normal = √(-2 ln u₁) cos(2π u₂), or sin for odd indices
//
// Computing a pair twice costs arithmetic only once per run, when weights are initialized, and lets any part of a
// tensor be computed on its own: element i depends on nothing but i and the key.
#include "megalith/ops/kernel/counter_normal_internal.h"
#include "megalith/ops/kernel/cuda_math.cuh"

namespace megalith::ops {

namespace {

constexpr int kThreads = 256;

// The fp64 functions of CUDA and of the host may differ by a few units in the last place (2^-53). A number that rounds
// to the same fp32 when it is moved by this much in either direction cannot be affected.
constexpr double kDoubt = 1.0 / (int64_t{1} << 47);

// Writes out [rows, width]. Elements whose rounding is in doubt are counted in *count, and the first `most` of them
// listed; the host computes those again.
__global__ void normal_kernel(CounterRows what, float* out, int64_t* doubtful, int64_t most, int* count) {
  const int64_t total = what.rows * what.width;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < total; i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = i / what.width;
    const uint64_t index = what.first + static_cast<uint64_t>(row * what.stride + (i - row * what.width));
    const PhiloxBlock bits = philox(index / 2, what.key);
    constexpr double kUnit = 1.0 / 4294967296.0;
    const double radius = sqrt(-2 * log((bits.word[0] + 1.0) * kUnit));
    const double angle = 2 * 3.141592653589793238462643383279502884 * bits.word[1] * kUnit;
    const double normal = radius * (index % 2 == 0 ? cos(angle) : sin(angle));
    if (static_cast<float>(normal * (1 - kDoubt)) != static_cast<float>(normal * (1 + kDoubt))) {
      const int slot = atomicAdd(count, 1);
      if (slot < most) doubtful[slot] = i;
    }
    // Without a fused multiply-add, as on the host.
    out[i] = static_cast<float>(__dadd_rn(what.mean, __dmul_rn(what.std, static_cast<float>(normal))));
  }
}

}  // namespace

void counter_normal_cuda(const CounterRows& what, float* out, int64_t* doubtful, int64_t most, int* count,
                         void* stream) {
  const int64_t total = what.rows * what.width;
  if (total == 0) return;
  const int64_t blocks = std::min((total + kThreads - 1) / kThreads, resident_blocks(normal_kernel, kThreads));
  launch("counter_normal", normal_kernel, {static_cast<unsigned>(blocks), kThreads, stream}, what, out, doubtful, most,
         count);
}

}  // namespace megalith::ops
