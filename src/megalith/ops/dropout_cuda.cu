// A thread has v neighbouring counters of a block of 64 elements, and the four elements of each: v at a time they stand
// side by side in memory.
#include "megalith/ops/counter_normal_internal.h"
#include "megalith/ops/cuda_math.cuh"
#include "megalith/ops/dropout_internal.h"

namespace megalith::ops {

namespace {

constexpr int kThreads = 256;
constexpr int kCounters = 16, kWords = 4;  // of a block, as on the CPU

template <typename T, int v, bool residual>
__global__ void __launch_bounds__(kThreads, 3) dropout_kernel(DropoutForward args, uint32_t threshold, float scale) {
  constexpr int kPieces = kCounters / v;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t block = thread / kPieces;
  const int lane = static_cast<int>(thread % kPieces) * v;
  const int64_t first = block * kCounters * kWords + lane;
  if (first >= args.elements) return;
  const auto *x = static_cast<const T*>(args.x), *added = static_cast<const T*>(args.residual);
  Pack<T, v> value[kWords], base[kWords];  // as they are: few registers
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const int64_t at = first + w * kCounters;
    if (at + v > args.elements) continue;
    value[w] = *reinterpret_cast<const Pack<T, v>*>(x + at);
    if (residual) base[w] = *reinterpret_cast<const Pack<T, v>*>(added + at);
  }
  uint32_t stays = 0;  // bit w · v + l
#pragma unroll 2
  for (int l = 0; l < v; ++l) {
    const PhiloxBlock drawn = philox(static_cast<uint64_t>(block * kCounters + lane + l), args.seed);
#pragma unroll
    for (int w = 0; w < kWords; ++w) stays |= (drawn.word[w] >= threshold ? 1U : 0U) << (w * v + l);
  }
  const auto result = [&](int bit, T in, T start) {
    const float kept = (stays >> bit & 1U) != 0 ? to_float(in) * scale : 0;
    return from_float<T>(residual ? rounded_to<T>(kept) + to_float(start) : kept);
  };
  T* y = static_cast<T*>(args.y);
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const int64_t at = first + w * kCounters;
    if (at + v <= args.elements) {
#pragma unroll
      for (int l = 0; l < v; ++l) value[w].item[l] = result(w * v + l, value[w].item[l], base[w].item[l]);
      *reinterpret_cast<Pack<T, v>*>(y + at) = value[w];
    } else {
#pragma unroll
      for (int l = 0; l < v; ++l)
        if (at + l < args.elements) y[at + l] = result(w * v + l, x[at + l], residual ? added[at + l] : x[at + l]);
    }
  }
}

}  // namespace

void dropout_forward_cuda(const DropoutForward& args, void* stream) {
  if (args.elements == 0) return;
  const auto threshold = static_cast<uint32_t>(args.p * 4294967296.0);
  const auto scale = static_cast<float>(1 / (1 - args.p));
  for_dtype(args.dtype, [&]<typename T>(T) {
    const auto run = [&]<int v>() {
      constexpr int64_t kEach = int64_t{v} * kWords;
      const int64_t blocks = (args.elements + kCounters * kWords - 1) / (kCounters * kWords);
      const int64_t threads = blocks * (kCounters * kWords / kEach);
      const auto grid = static_cast<unsigned>((threads + kThreads - 1) / kThreads);
      const auto kernel = args.residual != nullptr ? dropout_kernel<T, v, true> : dropout_kernel<T, v, false>;
      launch("dropout", kernel, {grid, kThreads, stream}, args, threshold, scale);
    };
    if (aligned(args.x) && aligned(args.residual) && aligned(args.y))
      run.template operator()<kVector<T>>();
    else
      run.template operator()<1>();
  });
}

}  // namespace megalith::ops
