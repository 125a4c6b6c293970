// HeldJobs: the rule by which jobs that can wait run beside collectives. WeightGradQueue holds weight gradients by it,
// and LayerWalk follows their memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <utility>

namespace megalith::nn {

// Jobs run in the order in which they came. Each has an amount of work, which is 0 for one that only reports that those
// before it have run. Not thread-safe.
class HeldJobs {
 public:
  using Job = std::function<void()>;
  // Enough for the next two collectives of backward, a scatter and the gather that follows it, and little memory.
  static constexpr std::ptrdiff_t kMost = 2;

  void add(double work, Job job) { jobs_.push_back({work, std::move(job)}); }
  // Returns the work of all jobs.
  double work() const {
    double sum = 0;
    for (const Entry& entry : jobs_) sum += entry.work;
    return sum;
  }
  // Runs the oldest jobs: enough for `work`, and so many that at most kMost with work remain. Reports run as soon as
  // nothing is before them.
  void run(double work) {
    while (!jobs_.empty() && (work > 0 || waiting() > kMost)) work -= run_first();
    while (!jobs_.empty() && jobs_.front().work == 0) run_first();
  }
  void clear() { jobs_.clear(); }

 private:
  struct Entry {
    double work;
    Job run;
  };

  std::ptrdiff_t waiting() const {
    return std::count_if(jobs_.begin(), jobs_.end(), [](const Entry& entry) { return entry.work > 0; });
  }
  // Returns the job's work. The job is destroyed, with the tensors that it holds, before the next one runs.
  double run_first() {
    const Entry entry = std::move(jobs_.front());
    jobs_.pop_front();
    entry.run();
    return entry.work;
  }

  std::deque<Entry> jobs_;
};

// Returns the elements of weights whose gradients take as long as a collective that brings each token so many bytes. In
// a training step an H100 multiplies 800 elements of a weight by one token's in the time in which NVLink moves a byte:
// 600 TFLOP/s, 375 GB/s.
inline double cover_work(double bytes_per_token) { return 800 * bytes_per_token; }

}  // namespace megalith::nn
