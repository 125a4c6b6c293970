// Random numbers and sums that equal NumPy's bit for bit: the order of samples depends on them.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace megalith::data {

// numpy.random.RandomState(seed): the Mersenne Twister 19937 of the standard library, and its shuffle. Not thread-safe.
// The order of calls matters: all indices of a dataset are drawn from one generator.
class NumpyRandom {
 public:
  // NumPy seeds its generator as std::mt19937 does.
  explicit NumpyRandom(uint32_t seed) : engine_(seed) {}

  // Fisher-Yates from the end. Seed 1234 turns 0 … 9 into 7 2 9 1 0 8 4 5 6 3.
  template <typename T>
  void shuffle(std::span<T> items) {
    for (uint64_t i = items.size(); i-- > 1;) std::swap(items[i], items[up_to(i)]);
  }

 private:
  // Uniform in [0, largest] by masked rejection sampling, bit for bit as NumPy's legacy generator.
  uint64_t up_to(uint64_t largest) {
    uint64_t mask = largest;
    for (int shift = 1; shift < 64; shift *= 2) mask |= mask >> shift;
    for (;;) {
      const uint64_t word = (largest > 0xFFFFFFFF ? wide_word() : engine_()) & mask;
      if (word <= largest) return word;
    }
  }
  // NumPy draws two words for numbers beyond 32 bits, the high half first.
  uint64_t wide_word() {
    const uint64_t high = engine_();
    return high << 32 | engine_();
  }

  std::mt19937 engine_;
};

// Returns numpy.random.default_rng(0).integers(1, high, count, dtype=int32): the lengths of mock sequences.
std::vector<int32_t> numpy_mock_lengths(int32_t high, size_t count);

// Returns weights / numpy.sum(weights), with the sum in NumPy's order of addition. Blends compare the results with <,
// so the last bit of a weight can decide between two datasets.
std::vector<double> normalized(std::span<const double> weights);

}  // namespace megalith::data
