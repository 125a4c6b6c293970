// Compiled only with MEGALITH_CUDA.
#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <mutex>

#include "megalith/ops/norm_rope/dropout_seed_internal.h"

namespace megalith::ops {

// libtorch's own way for kernels that draw: values, or the addresses of a graph that is being recorded.
DrawnSeed draw_seed_cuda(const at::Generator& generator) {
  auto* const cuda = at::check_generator<at::CUDAGeneratorImpl>(generator);
  const std::lock_guard lock(cuda->mutex_);
  const at::PhiloxCudaState state = cuda->philox_cuda_state(kOffsetPerSeed);
  if (!state.captured_) return {.value = mixed_seed(state.seed_.val, state.offset_.val)};
  return {.value = 0, .seed = state.seed_.ptr, .offset = state.offset_.ptr, .drawn = state.offset_intragraph_};
}

}  // namespace megalith::ops
