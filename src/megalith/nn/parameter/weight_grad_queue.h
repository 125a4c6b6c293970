// Deferred weight gradients: the second half of backward in zero-bubble pipeline schedules, and the head's products
// that a pipeline's last stage leaves until the other stages drain.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

namespace megalith::nn {

// Holds the work of several backward passes, first in, first out. Attached to parameters (GradientSlot::queue); linear
// layers whose weight has one leave the product dyᵀ·x in it, together with the tensors it needs. Used by one thread per
// rank; outlives the parameters' use of it.
class WeightGradQueue {
 public:
  using Job = std::function<void()>;

  // With `keeps_logits`, the chunked loss (linear_cross_entropy.h) defers its weight gradient, too. Each of its jobs
  // holds the logits of a chunk, so a pass holds [t, v/tp].
  explicit WeightGradQueue(bool keeps_logits = false) : keeps_logits_(keeps_logits) {}
  bool keeps_logits() const { return keeps_logits_; }

  // Records one backward pass during its lifetime: the jobs added meanwhile form one entry.
  class Recording {
   public:
    // Opens an entry. `queue` outlives it and is not being recorded.
    explicit Recording(WeightGradQueue& queue);
    ~Recording() { queue_.recording_ = false; }
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

   private:
    WeightGradQueue& queue_;
  };
  // Whether a Recording is alive: only then may jobs be added.
  bool recording() const { return recording_; }

  // Adds a job that computes a weight gradient.
  void add(Job job);
  // Gives the next job that is added a first half: `start` runs one job earlier, so that a transfer that it starts
  // overlaps with that job. The second half waits for it.
  void start_ahead(Job start);
  // Adds a job that runs after all weight gradients of the pass and reports that gradients are complete. Outside of a
  // recording it becomes a pass of its own, so that it runs after those that wait.
  void add_report(Job job);

  // Returns the number of waiting passes.
  size_t size() const { return passes_.size(); }
  // Runs the jobs of the oldest pass, in the order of its backward.
  void run_oldest();
  // Drops all jobs; for use after an error.
  void clear();

 private:
  struct Entry {
    Job start;  // may be empty
    Job run;
  };
  // One backward pass.
  struct Pass {
    std::vector<Entry> jobs;
    std::vector<Job> reports;
  };
  bool keeps_logits_;
  std::deque<Pass> passes_;
  bool recording_ = false;
  Job start_of_next_;  // see start_ahead
};

}  // namespace megalith::nn
