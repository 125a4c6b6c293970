// Random numbers for the order of data: the same on every machine, rank and library version.
#pragma once

#include <cstdint>
#include <vector>

namespace megalith::data {

// A generator of random numbers (SplitMix64).
class RandomStream {
 public:
  // Equal seeds give equal streams; mix_seed makes seeds for streams that must differ.
  explicit RandomStream(uint64_t seed) : state_(seed) {}
  // Returns 64 random bits.
  uint64_t next();
  // Returns a number uniformly distributed in [0, bound); bound > 0.
  uint64_t below(uint64_t bound);
  // Returns a number uniformly distributed in [0, 1).
  double unit();

 private:
  uint64_t state_;
};

// Combines two numbers into a seed, for streams that must be independent of one another.
uint64_t mix_seed(uint64_t a, uint64_t b);

// A random permutation of 0 … n-1 with random access and without a table: constant memory, and any element costs the
// same. A Feistel network over the next even power of two, applied until the result is less than n.
class Permutation {
 public:
  // Requires n >= 0. Costs nothing: elements are computed when they are asked for.
  Permutation(int64_t n, uint64_t seed);
  // Requires 0 <= index < n.
  int64_t operator[](int64_t index) const;

 private:
  uint64_t n_;
  unsigned half_bits_;
  uint64_t seed_;
};

// Returns the first `count` elements of a random order of 0 … n-1, followed by draws with repetition if count > n.
// Requires n > 0 unless count is 0.
std::vector<int64_t> random_selection(int64_t n, int64_t count, uint64_t seed);

}  // namespace megalith::data
