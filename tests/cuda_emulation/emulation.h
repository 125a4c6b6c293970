// Runs CUDA kernels on the CPU, to test their logic where there is no GPU: the blocks of a grid one after another
// (those of a cluster together), the threads of a block as fibers that take turns at barriers and warp functions. The
// headers in include/ are what a kernel sees of it.
//
// What a kernel may not rely on, the order in which threads and blocks run, is chosen: a kernel that gives other
// results in another order lacks a barrier. Everything runs on one OS thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace megalith::cuda_emulation {

// The order of blocks, of the warps of a block and of the lanes of a warp, between two places where they wait for each
// other.
enum class Order { kFirstToLast, kLastToFirst, kShuffled };

// The target of a cudaStream_t. As with CUDA, nullptr is the default stream of whatever device is current: first to
// last.
struct Stream {
  Order order = Order::kFirstToLast;
  uint64_t seed = 1;  // for kShuffled
  int device = 0;
};

// CUDA's uint3 and dim3.
struct Index3 {
  unsigned x, y, z;
};

// The configuration of a launch.
struct Grid {
  Index3 blocks, threads;
  unsigned cluster = 1;  // neighbouring blocks (in x) that run together
  size_t shared_bytes = 0;
  const Stream* stream = nullptr;
};
// Calls `kernel` once for each thread of the grid. Returns the error, with block and thread; empty if all is well.
std::string run(const Grid& grid, const std::function<void()>& kernel);

// For the thread that runs now. Each returns when the others that it waits for have come; where they cannot, run()
// ends.
void wait_for_block();
enum class WarpCall { kSync, kShuffle };
// The value that lane `source` of the warp gives in the same call.
uint64_t exchange(WarpCall call, unsigned mask, uint64_t value, unsigned source);
// A number for wait_for_cluster, which waits until every thread of the cluster has arrived as often.
unsigned arrive_at_cluster();
void wait_for_cluster(unsigned arrivals);
unsigned block_in_cluster();
void* address_in_block(unsigned block, void* shared);
// Ends run() with this message.
[[noreturn]] void stop(const char* why);

}  // namespace megalith::cuda_emulation

// Coordinates of the thread that runs now. Names and places are CUDA's.
extern megalith::cuda_emulation::Index3 threadIdx, blockIdx, blockDim, gridDim;
