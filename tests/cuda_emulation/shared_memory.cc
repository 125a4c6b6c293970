#include "tests/cuda_emulation/shared_memory.h"

#include <cuda_runtime.h>
#include <link.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace megalith::ops {

// Defines the array that kernels declare in cuda_math.cuh.
__shared__ uint4 dynamic_shared_memory[cuda_emulation::kMostDynamicBytes / sizeof(uint4)];

}  // namespace megalith::ops

namespace megalith::cuda_emulation {

namespace {

constexpr int kPoison = 0xff;  // every float, and every double, is a NaN; integers are negative

void poison(std::byte* begin, std::byte* end) { std::memset(begin, kPoison, static_cast<size_t>(end - begin)); }

// The thread-local variables of the library (or program) that holds this function.
int find_own(dl_phdr_info* library, size_t /*size*/, void* found) {
  const auto here = reinterpret_cast<uintptr_t>(&find_own);
  std::span<std::byte> variables;
  bool own = false;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const auto& part = library->dlpi_phdr[i];
    const uintptr_t begin = library->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_LOAD && here >= begin && here < begin + part.p_memsz) own = true;
    if (part.p_type == PT_TLS) variables = {static_cast<std::byte*>(library->dlpi_tls_data), part.p_memsz};
  }
  if (own) *static_cast<std::span<std::byte>*>(found) = variables;
  return own ? 1 : 0;
}

}  // namespace

std::span<std::byte> shared_memory() {
  static const std::span<std::byte> memory = [] {
    std::span<std::byte> variables;
    dl_iterate_phdr(&find_own, &variables);
    return variables;
  }();
  return memory;
}

SharedMemories::SharedMemories(unsigned blocks, size_t dynamic_bytes) {
  const auto memory = shared_memory();
  // Memory that nobody may use is left out, except for a piece after the block's own.
  const auto dynamic = std::as_writable_bytes(std::span(ops::dynamic_shared_memory));
  const size_t used = std::min(dynamic.size(), dynamic_bytes + 1024);
  poison(memory.data(), dynamic.data() + used);
  poison(dynamic.data() + dynamic.size(), memory.data() + memory.size());
  if (blocks > 1) kept_.assign(blocks, std::vector<std::byte>(memory.size(), std::byte{kPoison}));
}

void SharedMemories::put_in_place(unsigned block) {
  if (block == here_) return;
  const auto memory = shared_memory();
  std::memcpy(kept_[here_].data(), memory.data(), memory.size());
  std::memcpy(memory.data(), kept_[block].data(), memory.size());
  here_ = block;
}

void* SharedMemories::address_in(unsigned block, void* address) {
  if (block == here_) return address;
  return kept_[block].data() + (static_cast<std::byte*>(address) - shared_memory().data());
}

}  // namespace megalith::cuda_emulation
