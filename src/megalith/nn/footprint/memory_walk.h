// MemoryWalk: replays allocations and frees in bytes, and remembers the peak.
#pragma once

#include <array>
#include <cstddef>

namespace megalith::nn {

// What memory is used for.
enum class Use {
  kActivation,     // tensors that backward needs or that one layer passes to the next
  kCommunication,  // messages, gathered inputs, copies made by collectives
  kWorkspace,      // scratch of kernels, weight gradients on their way into the buffers
};

// Bytes by use.
using Bytes = std::array<double, 3>;
inline double total(const Bytes& bytes) { return bytes[0] + bytes[1] + bytes[2]; }

// The effect of a piece of work on memory, relative to its start: the peak, and the bytes still held at the end.
struct Footprint {
  Bytes peak{};
  Bytes left{};
};

// take() allocates, give() frees, touch() does both. The peak is the breakdown at the moment of the largest total.
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
  // Replays a piece of work that another walk has recorded.
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
