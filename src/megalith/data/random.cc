// Everything here is written out rather than taken from <random>, whose distributions differ between libraries: a run
// that resumes on another machine must see the same order of samples.
#include "megalith/data/random.h"

#include <algorithm>
#include <bit>

#include "megalith/base/error.h"

namespace megalith::data {
namespace {

constexpr int kRounds = 6;  // rounds of the Feistel network; Luby and Rackoff need at least four

// The output function of SplitMix64: every bit of the input changes about half of the output's.
uint64_t scrambled(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

}  // namespace

uint64_t RandomStream::next() { return scrambled(state_ += 0x9E3779B97F4A7C15ULL); }

uint64_t RandomStream::below(uint64_t bound) {
  // 2^64 is not a multiple of bound, so small results would be favored. Rejecting the first 2^64 mod bound draws makes
  // all equally likely.
  const uint64_t rest = (0 - bound) % bound;
  uint64_t draw = next();
  while (draw < rest) draw = next();
  return draw % bound;
}

// 53 random bits: as many as a double holds.
double RandomStream::unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

uint64_t mix_seed(uint64_t a, uint64_t b) { return scrambled(scrambled(a + 0x9E3779B97F4A7C15ULL) + b); }

Permutation::Permutation(int64_t n, uint64_t seed)
    : n_(static_cast<uint64_t>(n)),
      // Half of the bits of n - 1, rounded up: the network permutes fewer than 4n numbers, so it takes fewer than four
      // passes on average to land below n.
      half_bits_((static_cast<unsigned>(std::bit_width(std::max<uint64_t>(n_, 2) - 1)) + 1) / 2),
      seed_(seed) {}

// A Feistel network permutes [0, 2^(2 half_bits)), whatever its round function is. Cycle walking (apply it again until
// the value is below n) restricts it to a permutation of [0, n).
int64_t Permutation::operator[](int64_t index) const {
  check(index >= 0 && static_cast<uint64_t>(index) < n_, "element {} of a permutation of {}", index, n_);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> half_bits_, right = value & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = left ^ (mix_seed(seed_ + round, right) & mask);
      left = right;
      right = mixed;
    }
    value = (left << half_bits_) | right;
  } while (value >= n_);
  return static_cast<int64_t>(value);
}

// Each element once before any is repeated.
std::vector<int64_t> random_selection(int64_t n, int64_t count, uint64_t seed) {
  const Permutation order(n, seed);
  RandomStream repeats(mix_seed(seed, 1));
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < count; ++i)
    chosen.push_back(i < n ? order[i] : static_cast<int64_t>(repeats.below(static_cast<uint64_t>(n))));
  return chosen;
}

}  // namespace megalith::data
