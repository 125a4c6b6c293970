// Weight gradients that backward leaves for later: the second half of backward in zero-bubble pipeline schedules.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

namespace megalith::nn {

// The work of several backward passes, first in, first out. Attached to parameters (GradientSlot::queue); linear layers
// whose weight has one leave the product dyᵀ·x in it, together with the tensors it needs. One thread a rank; it
// outlives the parameters' use of it.
class WeightGradQueue {
 public:
  using Job = std::function<void()>;

  // While one lives, a backward pass is recorded: its jobs form one entry.
  class Recording {
   public:
    explicit Recording(WeightGradQueue& queue);
    ~Recording() { queue_.recording_ = false; }
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

   private:
    WeightGradQueue& queue_;
  };
  bool recording() const { return recording_; }

  // Computes a weight gradient.
  void add(Job job);
  // Runs behind all weight gradients of the pass: tells that gradients are complete.
  void add_report(Job job);

  // Passes that wait.
  size_t size() const { return passes_.size(); }
  // Does the work of the oldest pass, in the order of its backward.
  void run_oldest();
  // Drops everything: after an error.
  void clear();

 private:
  struct Pass {
    std::vector<Job> jobs, reports;
  };
  std::deque<Pass> passes_;
  bool recording_ = false;
};

}  // namespace megalith::nn
