// DrawnSeed: the seed of one call of a kernel that draws random numbers, as the kernel gets it. For host and device.
#pragma once

#include <cstdint>

#include "megalith/ops/kernel/counter_normal_internal.h"

namespace megalith::ops {

// Either 64 bits that the host has drawn, or, in a device graph, where the kernel finds the state that the generator
// has when the graph is replayed (parallel::RecordedDraws), and how much the pass has drawn before this call.
struct DrawnSeed {
  uint64_t value = 0;               // without addresses
  const int64_t* seed = nullptr;    // in memory that the kernel reads
  const int64_t* offset = nullptr;  // likewise, in random numbers as libtorch counts them
  uint64_t drawn = 0;               // after *offset
};

// Returns 64 bits that follow from the state of a CUDA generator: splitmix64 of the seed's stream, one step per draw.
// A draw advances the offset by kOffsetPerSeed, the unit that it counts in.
inline constexpr uint64_t kOffsetPerSeed = 4;
MEGALITH_HOST_DEVICE inline uint64_t mixed_seed(uint64_t seed, uint64_t offset) {
  uint64_t z = seed + 0x9E3779B97F4A7C15 * (offset / kOffsetPerSeed + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// Returns the seed: of this replay, in a graph.
MEGALITH_HOST_DEVICE inline uint64_t value_of(const DrawnSeed& drawn) {
  if (drawn.seed == nullptr) return drawn.value;
  return mixed_seed(static_cast<uint64_t>(*drawn.seed), static_cast<uint64_t>(*drawn.offset) + drawn.drawn);
}

}  // namespace megalith::ops
