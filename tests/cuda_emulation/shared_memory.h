// The shared memory of the kernels' blocks.
//
// A `__shared__` variable is a thread_local one: those of this library lie side by side, in one piece of memory whose
// place and size the dynamic linker tells. So it can be filled with NaNs before each block, and exchanged where blocks
// of a cluster take turns. (Attributes that put variables into a section do not work in GCC's templates.)
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace megalith::cuda_emulation {

// All `__shared__` variables of all kernels, dynamic shared memory included.
std::span<std::byte> shared_memory();

inline constexpr size_t kMostDynamicBytes = 227 << 10;  // bytes of a block, for kernels that ask; as an H100

// The shared memories of the blocks of a cluster, of which one at a time is in place.
class SharedMemories {
 public:
  // All filled with NaNs, and block 0 in place. `dynamic_bytes`: what a block has of dynamic shared memory.
  SharedMemories(unsigned blocks, size_t dynamic_bytes);
  void put_in_place(unsigned block);
  // Where `address`, of the block that is in place, is found in another block's memory.
  void* address_in(unsigned block, void* address);

 private:
  unsigned here_ = 0;
  std::vector<std::vector<std::byte>> kept_;  // contents of each block while it is not in place; empty for a single one
};

}  // namespace megalith::cuda_emulation
