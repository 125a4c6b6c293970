#include "tests/pipeline/sleeping_stage.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <thread>

#include "megalith/ops/kernel/autograd_state.h"

namespace megalith::testing {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

namespace {

struct SleepState {
  SleepTimes times;
  nn::WeightGradQueue* queue;
};

struct Sleep : Function<Sleep> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, SleepState state) {
    std::this_thread::sleep_for(state.times.forward);
    ops::save_state(ctx, state);
    return x.clone();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& state = ops::saved_state<SleepState>(ctx);
    std::this_thread::sleep_for(state.times.backward);
    const auto weights = [time = state.times.weight_gradient] { std::this_thread::sleep_for(time); };
    if (state.queue != nullptr && state.queue->recording())
      state.queue->add(weights);
    else
      weights();
    return {grads[0], {}};
  }
};

}  // namespace

at::Tensor sleep_through(const at::Tensor& x, const SleepTimes& times, nn::WeightGradQueue* queue) {
  return Sleep::apply(x, SleepState{times, queue});
}

double time_sleeping_step(const layout::PipelineShape& shape, const SleepTimes& times, bool overlap) {
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> begins(static_cast<size_t>(shape.pp)), ends(static_cast<size_t>(shape.pp));
  run_ranks(shape.pp, [&](const Rank& rank) {
    parallel::ParallelContext context(rank.world, layout::RankGrid({.world_size = shape.pp, .pp = shape.pp}));
    std::vector<nn::WeightGradQueue> queues(static_cast<size_t>(shape.chunks));
    const at::Tensor leaf = at::zeros({4, 8}).requires_grad_();
    pipeline::StageWork work;
    for (auto& queue : queues) work.weight_gradients.push_back(&queue);
    work.forward = [&](const pipeline::StageCall& call) {
      const at::Tensor& x = call.input.defined() ? call.input : leaf;
      const at::Tensor y = sleep_through(x, times, &queues[static_cast<size_t>(call.chunk)]);
      return call.last_stage ? y.sum() : y;
    };
    const pipeline::ForwardBackward engine(context, {.hidden = 8, .overlap = overlap});
    const pipeline::StepPlan plan{.shape = shape,
                                  .rows = std::vector<int64_t>(static_cast<size_t>(shape.microbatches), 4)};
    context.pp().barrier();
    begins[static_cast<size_t>(rank.rank)] = Clock::now();
    engine.run(plan, work);
    ends[static_cast<size_t>(rank.rank)] = Clock::now();
  });
  const auto begin = *std::min_element(begins.begin(), begins.end()), end = *std::max_element(ends.begin(), ends.end());
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace megalith::testing
