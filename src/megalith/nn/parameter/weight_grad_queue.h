// Weight gradients that are not computed where autograd meets them:
//
//   recorded    until the schedule asks for them: the second half of backward in zero-bubble pipeline schedules, and
//               the head's products that a pipeline's last stage leaves until the other stages drain
//   held        until a collective of the same backward pass needs something to run beside it (tp_comm_overlap)
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

#include "megalith/nn/footprint/held_jobs.h"

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
  // Returns a queue that holds jobs within a pass instead of recording passes.
  static WeightGradQueue for_cover() {
    WeightGradQueue queue;
    queue.covers_ = true;
    return queue;
  }
  bool covers() const { return covers_; }

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
  // recording it becomes a pass of its own, so that it runs after those that wait. A queue that covers runs it after
  // the jobs that it holds now.
  void add_report(Job job);

  // ---- Held jobs, of a queue that covers. The work of a job is the number of elements of its weight: all weights of
  // a pass are multiplied by the same number of tokens.

  // While it lives, jobs of trained weights are held. `unit` is the work that hides one collective on the residual
  // stream; jobs of four units or more are held in two halves.
  class Holding {
   public:
    // `queue` may be nullptr; it outlives this object.
    Holding(WeightGradQueue* queue, double unit);
    ~Holding();
    Holding(const Holding&) = delete;
    Holding& operator=(const Holding&) = delete;

   private:
    WeightGradQueue* queue_;
  };
  bool holding() const { return unit_ > 0; }
  double unit() const { return unit_; }
  // Holds a job, inside a backward pass of autograd. What is left when that pass ends is computed then.
  void hold(double work, Job job);
  // Returns the work of all held jobs.
  double held() const { return held_.work(); }
  // Runs the oldest jobs, as HeldJobs::run.
  void run_held(double work);

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
  bool covers_ = false;
  std::deque<Pass> passes_;
  bool recording_ = false;
  Job start_of_next_;  // see start_ahead
  HeldJobs held_;
  double unit_ = 0;     // the unit of the living Holding; 0 without one
  int ends_with_ = -1;  // the pass of autograd at whose end held jobs are computed
};

}  // namespace megalith::nn
