// ExactSum: a sum of doubles that does not depend on the order of the additions.
//
// Floating-point sums depend on their order, so a gradient norm would change in its last bits with the number of ranks
// that share a buffer. This sum is a fixed-point number wide enough for every double: each addition is exact, and so is
// the addition of the words of several ranks.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace megalith {

// One thread at a time. 560 bytes; adding costs three integer additions.
class ExactSum {
 public:
  // Digits of 32 bits, the lowest bit worth 2^-1074 (the smallest double). Each is stored in 64 bits, so that carries
  // can wait. The last word counts infinities and NaNs.
  static constexpr int kDigits = 68;
  using Words = std::array<int64_t, kDigits + 1>;

  // Adds one number. A double has 53 bits of mantissa, so shifted into place it touches at most three digits.
  void add(double x) {
    const auto bits = std::bit_cast<uint64_t>(x);
    const auto exponent = static_cast<int>((bits >> 52) & 0x7ff);
    if (exponent == 0x7ff) {
      ++words_[kDigits];
      return;
    }
    uint64_t mantissa = bits & ((uint64_t{1} << 52) - 1);
    if (exponent > 0) mantissa |= uint64_t{1} << 52;
    const int position = exponent > 0 ? exponent - 1 : 0;  // weight of the mantissa's lowest bit
    const auto shifted = static_cast<unsigned __int128>(mantissa) << (position % 32);
    const int64_t sign = (bits >> 63) != 0 ? -1 : 1;
    int64_t* digit = words_.data() + position / 32;
    digit[0] += sign * static_cast<int64_t>(static_cast<uint32_t>(shifted));
    digit[1] += sign * static_cast<int64_t>(static_cast<uint32_t>(shifted >> 32));
    digit[2] += sign * static_cast<int64_t>(static_cast<uint32_t>(shifted >> 64));
    if (++pending_ == kMostPending) carry();
  }

  // Adds another sum; the result is that of all numbers together, in any order.
  void add(const ExactSum& other) { add_words(other.words()); }

  // Returns the digits, carried. Words of up to 2^30 sums may be added elementwise (all_reduce) before add_words().
  Words words() const {
    ExactSum copy = *this;
    copy.carry();
    return copy.words_;
  }
  void add_words(const Words& words) {
    for (size_t i = 0; i < words.size(); ++i) words_[i] += words[i];
    carry();
  }

  // Returns whether an infinity or NaN was added; value() is then NaN.
  bool non_finite() const { return words_[kDigits] != 0; }

  // Returns the sum as a double: the same for the same numbers in any order.
  double value() const {
    if (non_finite()) return std::nan("");
    Words digits = words();
    const bool negative = digits[kDigits - 1] < 0;
    if (negative) {
      ExactSum opposite;
      for (int i = 0; i < kDigits; ++i) opposite.words_[i] = -digits[i];
      digits = opposite.words();
    }
    double sum = 0;
    for (int i = kDigits - 1; i >= 0; --i) sum += std::ldexp(static_cast<double>(digits[i]), 32 * i - 1074);
    return negative ? -sum : sum;
  }

 private:
  // 2^30 additions of less than 2^32 each stay below 2^62, within a 64-bit word.
  static constexpr int64_t kMostPending = int64_t{1} << 30;

  // Brings every digit but the highest, which carries the sign, into [0, 2^32).
  void carry() {
    for (int i = 0; i + 1 < kDigits; ++i) {
      const int64_t over = words_[i] >> 32;  // rounds down, also below zero
      words_[i] -= over * (int64_t{1} << 32);
      words_[i + 1] += over;
    }
    pending_ = 0;
  }

  Words words_{};
  int64_t pending_ = 0;  // additions since the last carry
};

}  // namespace megalith
