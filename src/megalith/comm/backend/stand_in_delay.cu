// One thread that looks at the clock: a stand-in occupies a slot of one multiprocessor, less than NCCL's kernels do.
#include <cuda_runtime.h>

#include "megalith/comm/backend/stand_in_delay.h"

namespace megalith::comm {

namespace {

// Nanoseconds of a clock that all multiprocessors share; on Hopper it advances every 32 ns.
__device__ uint64_t device_time() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__global__ void stamp(uint64_t* at) { *at = device_time(); }

__global__ void hold(const uint64_t* since, int64_t ns) {
  const uint64_t end = *since + static_cast<uint64_t>(ns);
  while (device_time() < end) __nanosleep(100);
}

const char* launch_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

const char* stamp_device_time(uint64_t* at, void* stream) {
  stamp<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(at);
  return launch_error();
}

const char* hold_stream(const uint64_t* since, int64_t ns, void* stream) {
  hold<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(since, ns);
  return launch_error();
}

}  // namespace megalith::comm
