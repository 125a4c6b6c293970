// MemoryWalk: replays allocations and frees in bytes, and remembers the peak. Sizes are doubles: they are estimates,
// and sums of products of large sizes must not overflow.
//
//   walk.take(100); walk.touch(50); walk.give(100);      // now 0, peak 150
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace megalith::nn {

// The use of a piece of memory, by which the planner reports it.
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
// cut() ends a piece: another pass may run before this one continues (nn/turns.h).
class MemoryWalk {
 public:
  // Allocates, and raises the peak if the total is the largest so far.
  void take(double bytes, Use use = Use::kActivation) {
    now_[static_cast<size_t>(use)] += bytes;
    raise_peaks(now_);
  }
  // Frees; may go below zero, for memory that was allocated before this walk.
  void give(double bytes, Use use = Use::kActivation) { now_[static_cast<size_t>(use)] -= bytes; }
  // Allocates and frees again: a temporary inside one operation.
  void touch(double bytes, Use use = Use::kActivation) {
    take(bytes, use);
    give(bytes, use);
  }
  // Replays a piece of work that another walk has recorded.
  void run(const Footprint& work) {
    Bytes high = now_;
    for (size_t i = 0; i < high.size(); ++i) high[i] += work.peak[i];
    raise_peaks(high);
    for (size_t i = 0; i < now_.size(); ++i) now_[i] += work.left[i];
  }

  void cut() {
    pieces_.push_back(last_piece());
    piece_begin_ = piece_peak_ = now_;
  }
  // Returns the pieces between the cuts, each relative to its own start.
  std::vector<Footprint> pieces() const {
    std::vector<Footprint> all = pieces_;
    all.push_back(last_piece());
    return all;
  }

  // Bytes held at this point, the breakdown at the peak, and both as one result.
  const Bytes& now() const { return now_; }
  const Bytes& peak() const { return peak_; }
  Footprint footprint() const { return {peak_, now_}; }

 private:
  void raise_peaks(const Bytes& bytes) {
    const double all = total(bytes);
    if (all > total(peak_)) peak_ = bytes;
    if (all > total(piece_peak_)) piece_peak_ = bytes;
  }
  Footprint last_piece() const {
    Footprint piece{piece_peak_, now_};
    for (size_t i = 0; i < now_.size(); ++i) {
      piece.peak[i] -= piece_begin_[i];
      piece.left[i] -= piece_begin_[i];
    }
    return piece;
  }

  Bytes now_{}, peak_{};
  Bytes piece_begin_{}, piece_peak_{};  // since the last cut
  std::vector<Footprint> pieces_;       // before it
};

}  // namespace megalith::nn
