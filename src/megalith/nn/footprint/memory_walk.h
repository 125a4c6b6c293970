// MemoryWalk: bytes that are taken and given back, one after the other, and the moment when most were held.
#pragma once

#include <array>
#include <cstddef>

namespace megalith::nn {

enum class Use {
  kActivation,     // what backward needs, and what layers hand to one another
  kCommunication,  // messages, gathered inputs, copies of collectives
  kWorkspace,      // scratch of kernels, weight gradients on their way into the buffers
};

// Bytes by use.
using Bytes = std::array<double, 3>;
inline double total(const Bytes& bytes) { return bytes[0] + bytes[1] + bytes[2]; }

// What a piece of work does to memory, relative to where it begins: the fullest moment, and what it leaves.
struct Footprint {
  Bytes peak{};
  Bytes left{};
};

class MemoryWalk {
 public:
  void take(double bytes, Use use = Use::kActivation) {
    now_[static_cast<size_t>(use)] += bytes;
    if (const double all = total(now_); all > most_) {
      most_ = all;
      peak_ = now_;
    }
  }
  void give(double bytes, Use use = Use::kActivation) { now_[static_cast<size_t>(use)] -= bytes; }
  void touch(double bytes, Use use = Use::kActivation) {
    take(bytes, use);
    give(bytes, use);
  }
  // Repeats a piece of work that another walk has recorded.
  void run(const Footprint& work) {
    Bytes high = now_;
    for (size_t i = 0; i < high.size(); ++i) high[i] += work.peak[i];
    if (const double all = total(high); all > most_) {
      most_ = all;
      peak_ = high;
    }
    for (size_t i = 0; i < now_.size(); ++i) now_[i] += work.left[i];
  }

  const Bytes& now() const { return now_; }
  const Bytes& peak() const { return peak_; }
  Footprint footprint() const { return {peak_, now_}; }

 private:
  Bytes now_{}, peak_{};
  double most_ = 0;
};

}  // namespace megalith::nn
