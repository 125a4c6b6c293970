// One entry per recorded pass, first in, first out: weight gradients of micro-batches are computed in the order of
// their passes, so that sums into main_grad have the order of an ordinary schedule. Held jobs never leave their pass.
#include "megalith/nn/parameter/weight_grad_queue.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <limits>
#include <utility>

#include "megalith/base/error.h"

namespace megalith::nn {

WeightGradQueue::Recording::Recording(WeightGradQueue& queue) : queue_(queue) {
  check(!queue.recording_, "a backward pass is recorded inside another");
  queue.passes_.emplace_back();
  queue.recording_ = true;
}

void WeightGradQueue::add(Job job) {
  check(recording_, "a weight gradient is deferred outside a recorded backward pass");
  passes_.back().jobs.push_back({std::exchange(start_of_next_, nullptr), std::move(job)});
}

void WeightGradQueue::start_ahead(Job start) {
  check(recording_ && !start_of_next_, "a job of a deferred weight gradient is started twice, or outside its pass");
  start_of_next_ = std::move(start);
}

void WeightGradQueue::add_report(Job job) {
  if (covers_) return hold(0, std::move(job));
  if (!recording_) passes_.emplace_back();
  passes_.back().reports.push_back(std::move(job));
}

void WeightGradQueue::run_oldest() {
  check(!passes_.empty() && !recording_, "no backward pass has left weight gradients");
  const at::NoGradGuard no_grad;  // these jobs are part of a backward pass
  Pass pass = std::move(passes_.front());
  passes_.pop_front();
  const auto start = [&](size_t job) {
    if (job < pass.jobs.size() && pass.jobs[job].start) pass.jobs[job].start();
  };
  start(0);
  for (size_t i = 0; i < pass.jobs.size(); ++i) {
    start(i + 1);
    pass.jobs[i].run();
    pass.jobs[i] = {};  // frees its tensors as soon as they are used
  }
  // Reports last: a bucket whose gradients are all reported may start its reduction at once.
  for (const Job& report : pass.reports) report();
}

WeightGradQueue::Holding::Holding(WeightGradQueue* queue, double unit)
    : queue_(queue != nullptr && queue->covers_ ? queue : nullptr) {
  if (queue_ != nullptr) queue_->unit_ = unit;
}

WeightGradQueue::Holding::~Holding() {
  if (queue_ != nullptr) queue_->unit_ = 0;
}

// A recomputed region is a pass of its own inside another one, and computes at its end what either of them holds.
void WeightGradQueue::hold(double work, Job job) {
  check(covers_, "a weight gradient is held by a queue that does not cover");
  held_.add(work, std::move(job));
  const int pass = torch::autograd::get_current_graph_task_id();
  check(pass >= 0, "a weight gradient is held outside a backward pass");
  if (pass == ends_with_) return;
  ends_with_ = pass;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [this] { run_held(std::numeric_limits<double>::infinity()); });
}

void WeightGradQueue::run_held(double work) {
  const at::NoGradGuard no_grad;  // these jobs are part of a backward pass
  held_.run(work);
}

void WeightGradQueue::clear() {
  passes_.clear();
  held_.clear();
  recording_ = false;
  start_of_next_ = nullptr;
}

}  // namespace megalith::nn
