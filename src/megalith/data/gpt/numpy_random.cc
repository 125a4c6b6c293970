// Parts of NumPy that decide the order of Megatron's data, reproduced to the last bit and tested against NumPy's own
// output. They must not be "improved": another rounding or another draw would be another dataset.
#include "megalith/data/gpt/numpy_random.h"

#include <bit>

namespace megalith::data {

namespace {

__extension__ using Uint128 = unsigned __int128;

constexpr Uint128 uint128(uint64_t high, uint64_t low) { return Uint128{high} << 64 | low; }

// PCG64 (XSL RR 128/64) in the state that NumPy's SeedSequence(0) sets. Only seed 0 is needed, so SeedSequence itself
// is not implemented.
class Pcg64OfSeedZero {
 public:
  // Returns the low half of a word, then its high half.
  uint32_t next32() {
    half_left_ = !half_left_;
    if (!half_left_) return static_cast<uint32_t>(word_ >> 32);
    word_ = next64();
    return static_cast<uint32_t>(word_);
  }

 private:
  uint64_t next64() {
    state_ = state_ * uint128(2549297995355413924U, 4865540595714422341U) + kIncrement;
    const auto high = static_cast<uint64_t>(state_ >> 64);
    return std::rotr(high ^ static_cast<uint64_t>(state_), static_cast<int>(high >> 58));
  }

  static constexpr Uint128 kIncrement = uint128(4723672219303484034U, 6377435431028945833U);
  Uint128 state_ = uint128(1919014152682489133U, 673392287158723043U);
  uint64_t word_ = 0;
  bool half_left_ = false;
};

// NumPy's pairwise summation: eight running sums in blocks of up to 128 numbers; longer inputs are split in half.
double pairwise_sum(std::span<const double> values) {
  if (values.size() < 8) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum;
  }
  if (values.size() > 128) {
    const size_t half = values.size() / 2 - values.size() / 2 % 8;
    return pairwise_sum(values.first(half)) + pairwise_sum(values.subspan(half));
  }
  double r[8];
  for (size_t j = 0; j < 8; ++j) r[j] = values[j];
  size_t i = 8;
  for (; i + 8 <= values.size(); i += 8)
    for (size_t j = 0; j < 8; ++j) r[j] += values[i + j];
  double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  for (; i < values.size(); ++i) sum += values[i];
  return sum;
}

}  // namespace

std::vector<int32_t> numpy_mock_lengths(int32_t high, size_t count) {
  Pcg64OfSeedZero random;
  const auto range = static_cast<uint32_t>(high - 1);  // 1 … high - 1
  // 2^32 mod range: so many low halves must be rejected for a uniform result.
  const uint32_t threshold = (0U - range) % range;
  std::vector<int32_t> lengths(count);
  for (int32_t& length : lengths) {
    uint64_t product = 0;  // Lemire's method: the high half is the result, a small low half is rejected
    do product = uint64_t{random.next32()} * range;
    while (static_cast<uint32_t>(product) < threshold);
    length = static_cast<int32_t>(product >> 32) + 1;
  }
  return lengths;
}

std::vector<double> normalized(std::span<const double> weights) {
  const double sum = pairwise_sum(weights);
  std::vector<double> result(weights.begin(), weights.end());
  for (double& weight : result) weight /= sum;
  return result;
}

}  // namespace megalith::data
