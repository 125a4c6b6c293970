// Random numbers of data: the same on every machine, rank and library version.
#pragma once

#include <cstdint>
#include <vector>

namespace megalith::data {

// A stream of numbers from a seed (SplitMix64).
class RandomStream {
 public:
  explicit RandomStream(uint64_t seed) : state_(seed) {}
  uint64_t next();
  // Even in [0, bound); bound > 0.
  uint64_t below(uint64_t bound);
  // Even in [0, 1).
  double unit();

 private:
  uint64_t state_;
};

// One number from several: seeds of streams that must not be alike.
uint64_t mix_seed(uint64_t a, uint64_t b);

// 0 … n-1 in random order, by number and without a table: any element costs the same, memory is constant. A Feistel
// network over the next even power of two, walked until it lands inside.
class Permutation {
 public:
  Permutation(int64_t n, uint64_t seed);
  // Requires 0 <= index < n.
  int64_t operator[](int64_t index) const;

 private:
  uint64_t n_;
  unsigned half_bits_;
  uint64_t seed_;
};

// The first `count` of a random order of 0 … n-1; beyond n, draws with repetition follow.
std::vector<int64_t> random_selection(int64_t n, int64_t count, uint64_t seed);

}  // namespace megalith::data
