// Kernels that show what the emulation notices. Each starts one on `stream`.
#pragma once

namespace megalith::ops {

constexpr int kSampleThreads = 96;  // three warps

// out [96]: what the neighbour wrote into shared memory; with a barrier between, or without.
void neighbours_sample(bool with_barrier, float* out, void* stream);
// The same in dynamic shared memory.
void dynamic_neighbours_sample(bool with_barrier, float* out, void* stream);
// out [96]: shared memory that nobody wrote.
void unwritten_sample(float* out, void* stream);
// out [96]: the number of the lane two places on; lanes below `missing` do not take part.
void shuffle_sample(int missing, int* out, void* stream);
// Lanes below `other` wait at __syncthreads, the rest in a shuffle.
void divergent_sample(int other, int* out, void* stream);
// out [96]: 1 for a thread that was left after half of them had returned and the rest met at a barrier.
void early_return_sample(int* out, void* stream);
// out [blocks, 3]: grid, block and thread as the last thread of each block sees them.
void indices_sample(int blocks, int* out, void* stream);
// out [96]: the value. The kernel gets `out` inside a structure.
void fill_sample(float value, float* out, void* stream);
// Dynamic shared memory of which nobody asked for so much.
void greedy_sample(void* stream);

}  // namespace megalith::ops
